#include <cerrno>

#include "softverbs/shared/profile.h"
#include "softverbs/verbs/completion_queue.h"
#include "softverbs/verbs/extended_verbs.h"

// The extended poll calls: one completion at a time, whose members are read by functions.
namespace verbena::softverbs {
namespace {

constexpr uint64_t kStamps =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

Cq& get_extended_cq(ibv_cq_ex* cq) {
  return *reinterpret_cast<Cq*>(cq);
}
const Completion& get_current(ibv_cq_ex* cq) {
  return get_extended_cq(cq).current;
}

int poll_next(ibv_cq_ex* base) {
  Cq& cq = get_extended_cq(base);
  if (!take_completion(cq, cq.current)) return ENOENT;
  base->wr_id = cq.current.wr_id;
  base->status = static_cast<ibv_wc_status>(cq.current.status);
  return 0;
}

// From a start that found a completion until the end of the poll, no other thread can poll.
int start_poll(ibv_cq_ex* base, ibv_poll_cq_attr* attributes) {
  if (attributes->comp_mask != 0) return EINVAL;
  Cq& cq = get_extended_cq(base);
  cq.poll_mutex.lock();
  int result = poll_next(base);
  if (result != 0 && poll_wire(cq)) result = poll_next(base);
  if (result != 0) cq.poll_mutex.unlock();
  yield_if_idle(result == 0);
  return result;
}

void end_poll(ibv_cq_ex* base) {
  get_extended_cq(base).poll_mutex.unlock();
}

void install_reads(ibv_cq_ex& cq, uint64_t fields) {
  cq.start_poll = start_poll;
  cq.next_poll = poll_next;
  cq.end_poll = end_poll;
  cq.read_opcode = [](ibv_cq_ex* base) { return static_cast<ibv_wc_opcode>(get_current(base).opcode); };
  cq.read_vendor_err = [](ibv_cq_ex*) -> uint32_t { return 0; };
  cq.read_wc_flags = [](ibv_cq_ex* base) -> unsigned { return get_current(base).flags; };
  cq.read_byte_len = [](ibv_cq_ex* base) { return get_current(base).byte_length; };
  cq.read_imm_data = [](ibv_cq_ex* base) -> __be32 { return get_current(base).immediate; };
  cq.read_qp_num = [](ibv_cq_ex* base) { return get_current(base).qp_number; };
  cq.read_src_qp = [](ibv_cq_ex* base) { return get_current(base).source_qp; };
  cq.read_slid = [](ibv_cq_ex*) -> uint32_t { return 0; };
  cq.read_sl = [](ibv_cq_ex*) -> uint8_t { return 0; };
  cq.read_dlid_path_bits = [](ibv_cq_ex*) -> uint8_t { return 0; };
  const auto read_stamp = [](ibv_cq_ex* base) { return get_current(base).stamp_ns; };
  if ((fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0) cq.read_completion_ts = read_stamp;
  if ((fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0)
    cq.read_completion_wallclock_ns = read_stamp;
}

bool is_supported(const ibv_cq_init_attr_ex& init) {
  const uint64_t known_fields = uint64_t{IBV_WC_STANDARD_FLAGS} | kStamps;
  constexpr uint32_t kKnownFlags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  constexpr uint32_t kKnownMask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
  const bool has_flags = (init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0;
  return (init.wc_flags & ~known_fields) == 0 &&
         (init.wc_flags & kStamps) != kStamps &&  // a completion has only one stamp
         (init.comp_mask & ~kKnownMask) == 0 && (!has_flags || (init.flags & ~kKnownFlags) == 0);
}

}  // namespace

ibv_cq_ex* create_cq_extended(ibv_context* context, ibv_cq_init_attr_ex* init) {
  if (!is_supported(*init)) return fail_with<ibv_cq_ex>(EOPNOTSUPP);
  if (init->cqe > get_profile().max_cq_entries || init->comp_vector > INT32_MAX)
    return fail_with<ibv_cq_ex>(EINVAL);
  Cq* cq = create_completion_queue(context, {static_cast<int>(init->cqe), init->cq_context, init->channel,
                                             static_cast<int>(init->comp_vector)});
  if (cq == nullptr) return nullptr;
  SharedCq& shared = Process::get()->segment().cq(cq->index);
  if ((init->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0) shared.stamp.set(kRawStamp);
  if ((init->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0) shared.stamp.set(kWallStamp);
  install_reads(cq->extended, init->wc_flags);
  return &cq->extended;
}

}  // namespace verbena::softverbs
