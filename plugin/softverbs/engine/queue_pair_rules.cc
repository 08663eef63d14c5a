#include <cerrno>

#include "softverbs/engine/objects.h"
#include "softverbs/engine/queue_pair_state.h"

namespace verbena::softverbs {
namespace {

struct Transition {
  ibv_qp_type type;
  ibv_qp_state from, to;
  int required, optional;
};

constexpr int kAlternatePath = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
constexpr int kRunning = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kAlternatePath;

constexpr int kUnreliableRunning = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | kAlternatePath;

constexpr Transition kTransitions[] = {
    {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | kAlternatePath},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     kRunning},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, 0, kRunning},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_RTS, 0, kRunning},
    {IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
         IBV_QP_RNR_RETRY | kAlternatePath},
    {IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | kAlternatePath},
    {IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, kUnreliableRunning},
    {IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_RTS, 0, kUnreliableRunning},
    {IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_UC, IBV_QPS_SQD, IBV_QPS_RTS, 0, kUnreliableRunning},
    {IBV_QPT_UC, IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | kAlternatePath},
    {IBV_QPT_UC, IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_UD, IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
};

bool is_path_valid(const ibv_ah_attr& path) {
  return path.port_num == kPort && path.is_global != 0 &&
         path.grh.sgid_index < kGidCount;  // RoCE needs a GRH
}

}  // namespace

int check_transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask) {
  mask &= ~IBV_QP_STATE;
  // Both are always possible and need no attributes, but many callers pass some.
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return 0;
  for (const Transition& known : kTransitions) {
    if (known.type != type || known.from != from || known.to != to) continue;
    const bool has_all = (mask & known.required) == known.required;
    const bool has_others = (mask & ~(known.required | known.optional)) != 0;
    return has_all && !has_others ? 0 : EINVAL;
  }
  return EINVAL;
}

int check_attributes(const ibv_qp_attr& attributes, int mask) {
  const auto has = [mask](int bit) { return (mask & bit) != 0; };
  const bool is_wrong =
      (has(IBV_QP_PORT) && attributes.port_num != kPort) ||
      (has(IBV_QP_PKEY_INDEX) && attributes.pkey_index != 0) ||
      (has(IBV_QP_AV) && !is_path_valid(attributes.ah_attr)) ||
      (has(IBV_QP_PATH_MTU) && (attributes.path_mtu < IBV_MTU_256 || attributes.path_mtu > IBV_MTU_4096)) ||
      (has(IBV_QP_DEST_QPN) && attributes.dest_qp_num >= 1u << 24) ||
      (has(IBV_QP_TIMEOUT) && attributes.timeout > 31) ||
      (has(IBV_QP_RETRY_CNT) && attributes.retry_cnt > 7) ||
      (has(IBV_QP_RNR_RETRY) && attributes.rnr_retry > 7) ||
      (has(IBV_QP_MIN_RNR_TIMER) && attributes.min_rnr_timer > 31) ||
      (has(IBV_QP_MAX_QP_RD_ATOMIC) && attributes.max_rd_atomic > kMaxReads) ||
      (has(IBV_QP_MAX_DEST_RD_ATOMIC) && attributes.max_dest_rd_atomic > kMaxReads);
  return is_wrong ? EINVAL : 0;
}

}  // namespace verbena::softverbs
