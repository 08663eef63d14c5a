#include <algorithm>
#include <iterator>

#include "verbs/library.h"
#include "verbs/queues.h"

namespace verbena::verbs {
namespace {

struct Description {
  int error;
  const char* text;
};

constexpr Description kDescriptions[] = {
    {IBV_WC_SUCCESS, "success"},
    {IBV_WC_LOC_LEN_ERR,
     "local length error: a message is longer than its receive buffer or than the port's max_msg_sz"},
    {IBV_WC_LOC_QP_OP_ERR,
     "local queue pair error: the device rejected the request; rxe also reports this error if a NIC or GID "
     "was removed"},
    {IBV_WC_LOC_EEC_OP_ERR, "local end-to-end context error: reliable datagram, which is not used here"},
    {IBV_WC_LOC_PROT_ERR,
     "local protection error: the buffer is not registered on this device or the registration was "
     "released"},
    {IBV_WC_WR_FLUSH_ERR,
     "flushed: the queue pair had failed before; an earlier line or the peer's log gives the cause"},
    {IBV_WC_MW_BIND_ERR, "memory window error: memory windows are not used here"},
    {IBV_WC_BAD_RESP_ERR, "bad response: the peer's device violated the protocol; check firmware and cables"},
    {IBV_WC_LOC_ACCESS_ERR,
     "local access error: a remote write reached memory that is not registered for remote writes"},
    {IBV_WC_REM_INV_REQ_ERR,
     "remote invalid request: the peer's device rejected a packet as out of order or forbidden; rxe also "
     "reports this error after lost packets"},
    {IBV_WC_REM_ACCESS_ERR,
     "remote access error: the peer's memory is not registered, or was released before the transfer; for GPU "
     "memory, check nvidia_peermem or dma-buf, IOMMU and PCI ACS on the peer"},
    {IBV_WC_REM_OP_ERR,
     "remote operation error: the peer's device failed while it served the request; see the peer's log and "
     "dmesg"},
    {IBV_WC_RETRY_EXC_ERR,
     "transport retries exhausted: the peer does not answer; check that the peer's process is alive, and "
     "check cables, switch, routes and the GID (VERBENA_GID_INDEX); VERBENA_ACK_TIMEOUT and "
     "VERBENA_RETRY_COUNT set how long the device retries"},
    {IBV_WC_RNR_RETRY_EXC_ERR,
     "receiver not ready: the peer posted no receive in time; the peer's process may hang"},
    {IBV_WC_LOC_RDD_VIOL_ERR, "local domain violation: reliable datagram, which is not used here"},
    {IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid datagram request: reliable datagram, which is not used here"},
    {IBV_WC_REM_ABORT_ERR, "remote abort: the peer's device aborted the operation; see the peer's log"},
    {IBV_WC_INV_EECN_ERR, "invalid end-to-end context number: reliable datagram, which is not used here"},
    {IBV_WC_INV_EEC_STATE_ERR, "invalid end-to-end context state: reliable datagram, which is not used here"},
    {IBV_WC_FATAL_ERR, "fatal device error: the device needs a reset; see dmesg"},
    {IBV_WC_RESP_TIMEOUT_ERR, "response timeout: the peer's device took too long"},
    {IBV_WC_GENERAL_ERR, "general error: only the vendor error number and dmesg give the cause"},
    {IBV_WC_TM_ERR, "tag matching error: tag matching is not used here"},
    {IBV_WC_TM_RNDV_INCOMPLETE, "tag matching rendezvous incomplete: tag matching is not used here"},
};

}  // namespace

// A remote invalid request is not such an error. This plugin never sends a request that the peer's queue pair
// does not allow or has no space for. Some devices (rxe) also report this error when packets of a message
// arrive again after a loss.
bool is_request_at_fault(int error) {
  return error == IBV_WC_LOC_LEN_ERR || error == IBV_WC_LOC_PROT_ERR || error == IBV_WC_LOC_ACCESS_ERR ||
         error == IBV_WC_MW_BIND_ERR || error == IBV_WC_REM_ACCESS_ERR;
}

bool is_flush_error(int error) {
  return error == IBV_WC_WR_FLUSH_ERR;
}

const char* describe_completion_error(int error) {
  const auto* const found = std::ranges::find(kDescriptions, error, &Description::error);
  return found == std::end(kDescriptions) ? "status unknown to this version" : found->text;
}

}  // namespace verbena::verbs
