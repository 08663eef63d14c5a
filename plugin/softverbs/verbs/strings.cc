#include <algorithm>
#include <iterator>

#include "softverbs/engine/objects.h"

namespace {

struct Rate {
  ibv_rate rate;
  int multiple;  // of 2.5 Gb/s
  int mbps;
};

constexpr Rate kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},     {IBV_RATE_5_GBPS, 2, 5000},      {IBV_RATE_10_GBPS, 4, 10000},
    {IBV_RATE_20_GBPS, 8, 20000},     {IBV_RATE_30_GBPS, 12, 30000},   {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},    {IBV_RATE_80_GBPS, 32, 80000},   {IBV_RATE_120_GBPS, 48, 120000},
    {IBV_RATE_28_GBPS, 11, 28125},    {IBV_RATE_50_GBPS, 20, 53125},   {IBV_RATE_400_GBPS, 160, 425000},
    {IBV_RATE_600_GBPS, 240, 637500}, {IBV_RATE_14_GBPS, 6, 14062},    {IBV_RATE_56_GBPS, 22, 56250},
    {IBV_RATE_112_GBPS, 45, 112500},  {IBV_RATE_168_GBPS, 67, 168750}, {IBV_RATE_25_GBPS, 10, 25781},
    {IBV_RATE_100_GBPS, 40, 103125},  {IBV_RATE_200_GBPS, 80, 206250}, {IBV_RATE_300_GBPS, 120, 309375},
};

// Finds the row whose member `from` is `value`, and returns its member `to`.
template <typename From, typename To>
To convert_rate(From Rate::*from, From value, To Rate::*to, To otherwise) {
  const auto* const row = std::ranges::find(kRates, value, from);
  return row == std::end(kRates) ? otherwise : row->*to;
}

template <typename Value>
struct Name {
  Value value;
  const char* name;
};

constexpr Name<ibv_wc_status> kStatuses[] = {
    {IBV_WC_SUCCESS, "success"},
    {IBV_WC_LOC_LEN_ERR, "local length error"},
    {IBV_WC_LOC_QP_OP_ERR, "local QP operation error"},
    {IBV_WC_LOC_EEC_OP_ERR, "local EE context operation error"},
    {IBV_WC_LOC_PROT_ERR, "local protection error"},
    {IBV_WC_WR_FLUSH_ERR, "work request flushed"},
    {IBV_WC_MW_BIND_ERR, "memory window bind error"},
    {IBV_WC_BAD_RESP_ERR, "bad response"},
    {IBV_WC_LOC_ACCESS_ERR, "local access error"},
    {IBV_WC_REM_INV_REQ_ERR, "remote invalid request"},
    {IBV_WC_REM_ACCESS_ERR, "remote access error"},
    {IBV_WC_REM_OP_ERR, "remote operation error"},
    {IBV_WC_RETRY_EXC_ERR, "transport retries exceeded"},
    {IBV_WC_RNR_RETRY_EXC_ERR, "receiver-not-ready retries exceeded"},
    {IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation"},
    {IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request"},
    {IBV_WC_REM_ABORT_ERR, "remote aborted"},
    {IBV_WC_INV_EECN_ERR, "invalid EE context number"},
    {IBV_WC_INV_EEC_STATE_ERR, "invalid EE context state"},
    {IBV_WC_FATAL_ERR, "fatal error"},
    {IBV_WC_RESP_TIMEOUT_ERR, "response timeout"},
    {IBV_WC_GENERAL_ERR, "general error"},
};

constexpr Name<ibv_event_type> kEvents[] = {
    {IBV_EVENT_CQ_ERR, "CQ error"},
    {IBV_EVENT_QP_FATAL, "QP fatal error"},
    {IBV_EVENT_QP_REQ_ERR, "QP invalid request"},
    {IBV_EVENT_QP_ACCESS_ERR, "QP access error"},
    {IBV_EVENT_COMM_EST, "communication established"},
    {IBV_EVENT_SQ_DRAINED, "send queue drained"},
    {IBV_EVENT_PATH_MIG, "path migrated"},
    {IBV_EVENT_PATH_MIG_ERR, "path migration failed"},
    {IBV_EVENT_DEVICE_FATAL, "device fatal error"},
    {IBV_EVENT_PORT_ACTIVE, "port active"},
    {IBV_EVENT_PORT_ERR, "port error"},
    {IBV_EVENT_LID_CHANGE, "LID changed"},
    {IBV_EVENT_PKEY_CHANGE, "P_Key table changed"},
    {IBV_EVENT_SM_CHANGE, "subnet manager changed"},
    {IBV_EVENT_SRQ_ERR, "SRQ error"},
    {IBV_EVENT_SRQ_LIMIT_REACHED, "SRQ limit reached"},
    {IBV_EVENT_QP_LAST_WQE_REACHED, "last WQE reached"},
    {IBV_EVENT_CLIENT_REREGISTER, "client reregistration"},
    {IBV_EVENT_GID_CHANGE, "GID table changed"},
};

constexpr Name<ibv_node_type> kNodes[] = {
    {IBV_NODE_CA, "InfiniBand channel adapter"},
    {IBV_NODE_SWITCH, "InfiniBand switch"},
    {IBV_NODE_ROUTER, "InfiniBand router"},
    {IBV_NODE_RNIC, "iWARP NIC"},
};

constexpr Name<ibv_port_state> kPortStates[] = {
    {IBV_PORT_NOP, "no state change (NOP)"},
    {IBV_PORT_DOWN, "down"},
    {IBV_PORT_INIT, "init"},
    {IBV_PORT_ARMED, "armed"},
    {IBV_PORT_ACTIVE, "active"},
    {IBV_PORT_ACTIVE_DEFER, "active defer"},
};

template <typename Names, typename Value>
const char* find_name(const Names& names, Value value, const char* otherwise) {
  const auto* const found = std::ranges::find(names, value, &Name<Value>::value);
  return found == std::end(names) ? otherwise : found->name;
}

}  // namespace

SOFTVERBS_API const char* ibv_wc_status_str(ibv_wc_status status) {
  return find_name(kStatuses, status, "unknown status");
}

SOFTVERBS_API const char* ibv_event_type_str(ibv_event_type event) {
  return find_name(kEvents, event, "unknown event");
}

SOFTVERBS_API const char* ibv_node_type_str(ibv_node_type type) {
  return find_name(kNodes, type, "unknown");
}

SOFTVERBS_API const char* ibv_port_state_str(ibv_port_state state) {
  return find_name(kPortStates, state, "invalid state");
}

SOFTVERBS_API int ibv_rate_to_mult(ibv_rate rate) {
  return convert_rate(&Rate::rate, rate, &Rate::multiple, -1);
}

SOFTVERBS_API ibv_rate mult_to_ibv_rate(int multiple) {
  return convert_rate(&Rate::multiple, multiple, &Rate::rate, IBV_RATE_MAX);
}

SOFTVERBS_API int ibv_rate_to_mbps(ibv_rate rate) {
  return convert_rate(&Rate::rate, rate, &Rate::mbps, -1);
}

SOFTVERBS_API ibv_rate mbps_to_ibv_rate(int mbps) {
  return convert_rate(&Rate::mbps, mbps, &Rate::rate, IBV_RATE_MAX);
}
