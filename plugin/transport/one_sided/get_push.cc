#include "transport/one_sided/get_push.h"

namespace verbena::transport {

base::Result<std::unique_ptr<GetPush>> GetPush::create(verbs::Device& device,
                                                       verbs::CompletionQueue& completions, uint64_t index) {
  auto made = std::make_unique<GetPush>();
  made->own_ = device.refresh_address();
  auto lane = Lane::create(device, completions,
                           {.index = index,
                            .send_depth = kSendDepth,
                            .outstanding_reads = 1,
                            .has_atomics = false,
                            .local = &made->own_});
  if (!lane) return lane.error();
  made->lane_ = std::move(*lane);
  verbs::QueuePair& pair = made->lane_.pair();
  if (auto connected = pair.connect(made->own_.port, pair.address()); !connected) return connected.error();
  return made;
}

base::Outcome GetPush::push(const PushedPlace& place) {
  verbs::OneSidedRequest request{{.opcode = verbs::Opcode::kRead,
                                  .local = lane_.next_word(),
                                  .local_key = lane_.words_key(),
                                  .length = 1,
                                  .remote_key = place.key,
                                  .remote = reinterpret_cast<uintptr_t>(place.address)}};
  if (auto outcome = lane_.append_last(request, 1, true); !outcome) return outcome;
  return lane_.ring();
}

void GetPush::note_done() {
  lane_.retire();
  released_ += covered_;
  covered_ = 0;
}

void GetPush::drop(uint32_t peer) {
  for (Held& held : held_) held.is_dropped |= held.completion.peer == peer;
}

base::Result<uint32_t> GetPush::release(std::span<EndpointCompletion> out) {
  if (covered_ == 0) {
    while (released_ < held_.size() && !held_[released_].place) ++released_;
    if (released_ < held_.size()) {
      // One READ for all gets that are done by now, whatever GPU memory of this endpoint they went to.
      if (auto outcome = push(*held_[released_].place); !outcome) return outcome.error();
      covered_ = held_.size() - released_;
    }
  }
  uint32_t filled = 0;
  for (; released_ > 0 && filled < out.size(); --released_) {
    if (!held_.front().is_dropped) out[filled++] = held_.front().completion;
    held_.pop_front();
  }
  return filled;
}

}  // namespace verbena::transport
