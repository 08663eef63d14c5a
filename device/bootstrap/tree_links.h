// One rank's connections in the tree: to its parent, and from its children as they come. Carries frames; what
// they mean, the tree carrier knows. No call blocks but wait().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/socket.h"
#include "device/bootstrap/link.h"
#include "device/bootstrap/tree_shape.h"

namespace verbena::bootstrap {

class TreeLinks {
 public:
  struct Place {
    TreeShape shape;
    uint32_t rank = 0;
    Nonce nonce{}, secret{};  // of the Meeting
  };
  // One of our links, by its number; the parent's is 0, but in the root.
  struct Arrival {
    size_t neighbour;
    Record record;
  };

  explicit TreeLinks(const Place& place);
  // Where our children connect to; none is opened in a rank without.
  base::Outcome listen();
  const base::SocketAddress& address() const { return listener_.address(); }
  base::Outcome connect_parent(const base::SocketAddress& address);

  // Accepts children and moves everything that can move now.
  void advance();
  // Until something may be done, `most_ms` at most.
  void wait(int64_t most_ms);

  std::optional<Arrival> take();
  // To a neighbour that has not come yet, once it has; to one that has gone, never.
  void send(size_t neighbour, const Record& record);
  void send_to_children(const Record& record);
  void send_up(const Record& record) { send(0, record); }
  // To all but `from`.
  void spread(const Record& record, std::optional<size_t> from);
  bool is_flushed() const;

  size_t count() const { return neighbours_.size(); }
  uint32_t rank_of(size_t neighbour) const { return neighbours_[neighbour].rank; }
  size_t neighbour_of(uint32_t rank) const;
  bool has_parent() const { return place_.rank != 0; }
  bool is_parent(size_t neighbour) const { return has_parent() && neighbour == 0; }
  // Its connection is over, and all that came over it was taken.
  bool is_lost(size_t neighbour) const;
  bool has_come(size_t neighbour) const { return neighbours_[neighbour].link.has_value(); }
  const std::string& problem_of(size_t neighbour) const { return neighbours_[neighbour].link->problem(); }

 private:
  struct Neighbour {
    uint32_t rank;
    std::optional<Link> link;
    std::vector<Record> waiting;  // for it to come

    void attach(Link made);
  };
  struct Caller {
    Link link;
    base::Deadline deadline;  // for proving that it is a child of ours
  };

  void accept_children();
  void send_stranger_away();
  void serve(Caller& caller);
  Refusal judge(const Hello& hello) const;
  const Neighbour* find_child(uint32_t rank) const;

  Place place_;
  base::Listener listener_;
  std::vector<Caller> callers_;
  std::vector<Neighbour> neighbours_;
};

}  // namespace verbena::bootstrap
