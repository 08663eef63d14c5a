#include "transport/one_sided/lane.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace verbena::transport {

namespace {

constexpr uint32_t kChainEntries = 32;
constexpr uint32_t kMaxInterval = 32;  // requests from one that is signaled to the next

}  // namespace

base::Result<Lane> Lane::create(verbs::Device& device, verbs::CompletionQueue& completions,
                                const Options& options) {
  Lane lane;
  const uint32_t words = std::bit_ceil(options.send_depth);
  lane.words_ = std::make_unique<uint64_t[]>(words);
  lane.word_mask_ = lane.mark_mask_ = words - 1;
  lane.marks_.resize(words);
  lane.pending_.reserve(kChainEntries);
  lane.signal_interval_ = std::min(options.send_depth / 4, kMaxInterval);
  lane.index_ = options.index;
  auto region = verbs::MemoryRegion::register_memory(device, lane.words_.get(), words * sizeof(uint64_t), {});
  if (!region) return region.error();
  lane.words_region_ = std::move(*region);
  verbs::QueuePairOptions pair;
  pair.send_depth = options.send_depth;
  pair.operations = {
      .send_imm = false, .write = true, .write_imm = false, .read = true, .fetch_add = options.has_atomics};
  pair.outstanding_reads = options.outstanding_reads;
  pair.local = options.local;
  auto made = verbs::QueuePair::create(device, completions, pair);
  if (!made) return made.error();
  lane.pair_ = std::move(*made);
  return lane;
}

void Lane::signal(Mark mark) {
  pending_.back().signaled = true;
  mark.unpushed = std::exchange(unpushed_, std::nullopt);
  marks_[mark_tail_++ & mark_mask_] = mark;
  unsignaled_ = 0;
}

base::Outcome Lane::push(verbs::OneSidedRequest request) {
  // Before and not after: what ends an operation is in the chain when its mark is made.
  if (pending_.size() == kChainEntries) {
    if (auto posted = pair_.post(pending_); !posted) return posted;
    pending_.clear();
  }
  const bool has_answer =
      request.opcode == verbs::Opcode::kRead || request.opcode == verbs::Opcode::kFetchAdd;
  // Whatever is sent lies in registered memory that stays until it is done, so that it may as well be
  // fetched.
  request.send_inline &= request.length <= pair_.inline_bytes();
  request.cookie = index_;
  request.fenced = is_fenced_;
  if (is_fenced_) is_fenced_ = has_answers_ = false;
  has_answers_ |= has_answer;
  pending_.push_back(request);
  ++appended_;
  ++unsignaled_;
  return {};
}

base::Outcome Lane::append(verbs::OneSidedRequest request) {
  if (auto outcome = push(request); !outcome) return outcome;
  if (unsignaled_ == signal_interval_) signal({count_taken_, 0, 0, false});
  return {};
}

base::Outcome Lane::append_last(verbs::OneSidedRequest request, uint64_t cookie, bool brings_word,
                                const std::optional<PushedPlace>& unpushed) {
  const uint32_t word = appended_ & word_mask_;
  if (auto outcome = push(request); !outcome) return outcome;
  ++count_taken_;
  if (unpushed) unpushed_ = unpushed;
  if (cookie != 0 || unsignaled_ == signal_interval_) {
    signal({count_taken_, cookie, word, brings_word});
  }
  return {};
}

base::Outcome Lane::ring() {
  if (pending_.empty()) return {};
  if (!pending_.back().signaled) signal({count_taken_, 0, 0, false});
  auto outcome = pair_.post(pending_);
  pending_.clear();
  return outcome;
}

std::optional<Lane::Ended> Lane::retire() {
  pair_.retire();
  if (mark_head_ == mark_tail_) return std::nullopt;
  const Mark& mark = marks_[mark_head_++ & mark_mask_];
  count_done_ = mark.count_done;
  return Ended{mark.count_done, mark.cookie, mark.brings_word ? words_[mark.word] : 0, mark.unpushed};
}

}  // namespace verbena::transport
