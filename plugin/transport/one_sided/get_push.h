// What a get brought into GPU memory may still be on its way there when the NIC says that the get is done:
// the completion lies in host memory, and took another way. A READ of one byte of that memory, which the NIC
// asks of itself, comes back behind all writes before it. Completions that tell of such gets wait here for
// theirs, and whatever is told later waits behind them, so that each lane is told of in order. The driver's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "transport/one_sided/lane.h"
#include "verbena/endpoint.h"

namespace verbena::transport {

class GetPush {
 public:
  static constexpr uint32_t kSendDepth = 16;

  // Over a queue pair connected to itself; its requests' cookie is `index`.
  static base::Result<std::unique_ptr<GetPush>> create(verbs::Device& device,
                                                       verbs::CompletionQueue& completions, uint64_t index);

  bool is_empty() const { return held_.empty(); }
  // `place`: memory that a get in it, or before it, went to; none if there was no such get.
  void hold(const EndpointCompletion& completion, const std::optional<PushedPlace>& place) {
    held_.push_back({completion, place});
  }
  // A READ of ours is done.
  void note_done();
  // Nothing more is told of this peer.
  void drop(uint32_t peer);
  // How many of `out` were filled; asks for the next READ. Fails if the device does not take it.
  base::Result<uint32_t> release(std::span<EndpointCompletion> out);
  void stop() { lane_.pair().stop(); }

 private:
  struct Held {
    EndpointCompletion completion;
    std::optional<PushedPlace> place;
    bool is_dropped = false;
  };
  base::Outcome push(const PushedPlace& place);

  Lane lane_;
  verbs::LocalAddress own_;
  std::deque<Held> held_;
  size_t released_ = 0;  // of them, from the front: may be told
  size_t covered_ = 0;   // behind those: wait for the READ under way; 0: there is none
};

}  // namespace verbena::transport
