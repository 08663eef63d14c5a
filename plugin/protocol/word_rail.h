// On which of its rails an endpoint's words are reached. All ranks add to them through one device, as two do
// not exclude each other; so the endpoint itself says which, and moves when that rail does not reach every
// peer any more and another one does. Pure.
//
// The order of a move is what makes it safe: first every queue pair on the old rail is stopped, so that its
// device adds nothing any more, then the peers are told. A peer that has not heard of it finds its queue pair
// dead; a new one on the old rail is made by records that come behind the one that tells.
#pragma once

#include <cstdint>

namespace verbena::protocol {

class WordRail {
 public:
  explicit WordRail(uint32_t rail) : rail_(rail) {}

  uint32_t rail() const { return rail_; }
  uint32_t moves() const { return moves_; }

  // Host: rails(), is_whole(rail) (its queue pairs to every peer that has not failed live, in every lane),
  // stop_rail(rail), tell_word_rail(rail, moves) (to every such peer, our own lanes too). For whenever a
  // queue pair has failed or lives again; whether it has moved.
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
