// The rail on which an endpoint's words are accessed. All ranks add to the words through one device, because
// adds of two devices are not atomic with each other. The endpoint chooses the rail, and changes it when the
// rail no longer reaches every peer but another one does. Pure.
//
// The order of a change makes it safe: first every queue pair on the old rail is stopped, so that its device
// executes no further adds; then the peers are notified. A peer that does not know of the change finds that
// its queue pair has failed. A new queue pair on the old rail is set up by records that follow the
// notification.
#pragma once

#include <cstdint>

namespace verbena::protocol {

class WordRail {
 public:
  explicit WordRail(uint32_t rail) : rail_(rail) {}

  uint32_t rail() const { return rail_; }
  uint32_t moves() const { return moves_; }

  // Host offers: rails(), is_whole(rail) (its queue pairs to every peer that has not failed are live, in
  // every lane), stop_rail(rail), tell_word_rail(rail, moves) (notifies every such peer, and this rank's own
  // lanes). Call this when a queue pair has failed or is live again. Returns whether the rail has changed.
  template <typename Host>
  bool reconsider(Host& host) {
    if (host.is_whole(rail_)) return false;
    for (uint32_t rail = 0; rail < host.rails(); ++rail) {
      if (rail == rail_ || !host.is_whole(rail)) continue;
      host.stop_rail(rail_);  // FAULT(old_rail_of_words_is_not_stopped)
      rail_ = rail;
      host.tell_word_rail(rail, ++moves_);
      return true;
    }
    return false;
  }

 private:
  uint32_t rail_;
  uint32_t moves_ = 0;
};

}  // namespace verbena::protocol
