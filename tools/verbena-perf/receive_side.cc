#include "verbena-perf/receive_side.h"

#include <algorithm>
#include <cstdio>

#include "common/cpu_unpack.h"
#include "common/error.h"
#include "common/pattern.h"

namespace verbena::tools::perf {

ReceiveSide::ReceiveSide(NetPlugin& plugin, const NcclHost& host, const PerfOptions& options,
                         const ReceiveSide* lender)
    : plugin_(plugin),
      comm_(host.receive_comm()),
      fifo_(plugin, host.receive_comm(), options, options.destination_offset_bytes,
            lender == nullptr ? nullptr : &lender->fifo_),
      window_(options.window),
      consume_lag_(options.consume_lag),
      protocol_(options.protocol),
      // NCCL's own transport completes a receive with the hint at once, because NCCL's kernels poll the data.
      gives_hint_(options.protocol != Protocol::kSimple && options.transport != Transport::kNcclIb),
      verify_(options.verify),
      unpack_(host.slots()),
      first_head_(unpack_ != nullptr ? unpack_->head : 0) {}

void ReceiveSide::start(const Pass& pass) {
  pass_ = pass;
  posted_ = completed_ = consumed_ = 0;
}

bool ReceiveSide::post() {
  if (posted_ == pass_.count || posted_ - consumed_ == window_) return false;
  std::byte* const data = fifo_.place(posted_, pass_.length_bytes).data();
  if (pass_.distinct) fill_guard(fifo_.guard(posted_, pass_.length_bytes));
  void* const request =
      plugin_.irecv(comm_, data, fifo_.receive_length(pass_.length_bytes), fifo_.mhandle(), gives_hint_);
  if (request == nullptr) return false;
  posted(posted_++) = {request, takes_slots() ? compute_slot(first_head_, slots_taken_++) : 0};
  return true;
}

bool ReceiveSide::complete() {
  if (completed_ == posted_) {
    consume_until(completed_);
    return false;
  }
  const auto length = plugin_.test(posted(completed_).request);
  if (!length) return false;
  if (*length != pass_.length_bytes) {
    throw ToolError("receive of " + std::to_string(pass_.length_bytes) + " bytes: test reported " +
                    std::to_string(*length));
  }
  unpack(completed_);
  if (verify_ && pass_.distinct) check_bytes(completed_);
  ++completed_;
  const uint64_t lag = completed_ == pass_.count ? 0 : consume_lag_;
  consume_until(completed_ - std::min(lag, completed_));
  return true;
}

void ReceiveSide::unpack(uint64_t message) {
  if (unpack_ != nullptr) check_idle_slots(message);
  UnpackedSlot unpacked;
  if (takes_slots()) {
    unpacked = unpack_slot(*unpack_, posted(message).slot, fifo_.place(message, pass_.length_bytes));
  }
  if (unpacked.descriptor_count == 0) {
    ++counts_.direct;
    return;
  }
  // Fewer bytes are correct: after a failure, retransmitted data may be in place already.
  if (unpacked.bytes > pass_.length_bytes) {
    throw ToolError("the descriptors of a message of " + std::to_string(pass_.length_bytes) +
                    " bytes cover " + std::to_string(unpacked.bytes));
  }
  ++counts_.staged;
  counts_.descriptors += unpacked.descriptor_count;
}

// A slot must have a count only between completion and consumption; otherwise NCCL's kernel loops for ever
// after an abort.
void ReceiveSide::check_idle_slots(uint64_t message) {
  unsigned in_use = 0;
  if (takes_slots()) {
    for (uint64_t open = consumed_; open <= message; ++open) in_use |= 1U << posted(open).slot;
  }
  for (unsigned slot = 0; slot < kUnpackSlots; ++slot) {
    const uint64_t count = (in_use >> slot & 1U) != 0 ? 0 : load_slot_count(*unpack_, slot);
    if (count == 0) continue;
    throw ToolError("slot " + std::to_string(slot) + " has " + std::to_string(count) +
                    " descriptors, although no completed receive of this slot waits for irecvConsumed");
  }
}

void ReceiveSide::check_bytes(uint64_t message) {
  const std::span<const std::byte> bytes = fifo_.place(message, pass_.length_bytes);
  const uint64_t pattern_index = pass_.pattern_index(message, window_);
  const PatternCheck check = check_pattern(bytes, pattern_index);
  const uint64_t wrong_guards =
      pass_.distinct ? count_wrong_guard_bytes(fifo_.guard(message, pass_.length_bytes)) : 0;
  counts_.verified_bytes += bytes.size();
  if (check.wrong_bytes + wrong_guards == 0) return;
  if (counts_.wrong_bytes == 0) {
    std::fprintf(
        stderr,
        "verbena-perf: message %lu of %lu bytes (slot %u): %lu bytes wrong, the first at offset %lu; "
        "%lu bytes after the message overwritten\n",
        static_cast<unsigned long>(message), static_cast<unsigned long>(bytes.size()), posted(message).slot,
        static_cast<unsigned long>(check.wrong_bytes), static_cast<unsigned long>(check.first_wrong_offset),
        static_cast<unsigned long>(wrong_guards));
  }
  counts_.wrong_bytes += check.wrong_bytes + wrong_guards;
}

void ReceiveSide::check_last_window() {
  if (!verify_ || pass_.distinct) return;
  const uint64_t kept = std::min<uint64_t>(window_, pass_.count);
  for (uint64_t message = pass_.count - kept; message < pass_.count; ++message) check_bytes(message);
}

void ReceiveSide::consume_until(uint64_t message) {
  for (; consumed_ < message; ++consumed_) {
    plugin_.consume(comm_, posted(consumed_).request);
    if (!takes_slots()) continue;
    // NCCL's kernel writes its head back at its end; the plugin must not depend on that.
    unpack_->head = first_head_ + 1 + (slots_taken_ - posted_) + consumed_;
    const unsigned slot = posted(consumed_).slot;
    if (load_slot_count(*unpack_, slot) != 0) {
      throw ToolError("after irecvConsumed, there are still descriptors in slot " + std::to_string(slot));
    }
  }
}

void ReceiveSide::release() {
  fifo_.release(plugin_, comm_);
}

}  // namespace verbena::tools::perf
