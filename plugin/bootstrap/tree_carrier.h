// Collective calls over the tree: every rank's contribution goes up to rank 0, relayed as it comes, and the
// result comes down. A rank that fails, or sees a neighbour gone, tells all others, so nobody waits for what
// cannot come; when the first rank's time is over, rank 0 says who is missing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/socket.h"
#include "bootstrap/carrier.h"
#include "bootstrap/collective_call.h"
#include "bootstrap/link.h"
#include "bootstrap/messages.h"

namespace verbena::bootstrap {

// One rank's connections in the tree: to its parent, and from its children as they come. Carries frames; what
// they mean, the tree carrier knows. No call blocks but wait().
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

class TreeCarrier final : public Carrier {
 public:
  // With links that may still have to come: the first call waits for them.
  TreeCarrier(const TreeLinks::Place& place, TreeLinks links, int64_t timeout_ms);
  // Tells the neighbours that we leave in order.
  ~TreeCarrier() override;

  base::Outcome all_gather(Operation what, std::span<const std::byte> mine,
                           std::span<std::byte> all) override;
  base::Outcome exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) override;
  base::Outcome look_around() override;
  void set_timeout_ms(int64_t timeout_ms) override { timeout_ms_ = timeout_ms; }
  uint32_t rank() const override { return rank_; }
  uint32_t count_ranks() const override { return shape_.count_ranks; }

 private:
  using Call = CollectiveCall;

  base::Outcome run(Operation operation, base::Bytes mine, std::span<uint8_t> result);
  void begin(Call& call);
  base::Outcome progress(Call& call);
  base::Outcome handle(Call& call, const TreeLinks::Arrival& arrival);
  base::Outcome handle_contribution(Call& call, const TreeLinks::Arrival& arrival);
  base::Outcome handle_result(Call& call, const TreeLinks::Arrival& arrival);
  base::Outcome handle_failure(const TreeLinks::Arrival& arrival);
  base::Outcome check_for_lost(const Call& call);
  base::Outcome handle_time(Call& call);
  void ask_who_is_missing(Call& call);
  void send_results(Call& call);
  base::Error give_verdict(const Call& call);
  bool awaits(const Call& call, size_t neighbour) const;
  bool is_done(const Call& call) const { return call.results_due() == 0 && links_.is_flushed(); }
  bool is_root() const { return rank_ == 0; }
  std::string describe_call(Operation operation, uint32_t sequence) const;
  std::string describe_lost(size_t neighbour) const;
  // Tells everybody but `from`, logs, and ends this carrier.
  base::Error fail_all(const FailureNote& note, std::optional<size_t> from);

  TreeShape shape_;
  uint32_t rank_;
  int64_t timeout_ms_;
  TreeLinks links_;
  uint32_t sequence_ = 0;
  std::vector<bool> has_left_;             // by neighbour: said goodbye
  std::vector<TreeLinks::Arrival> early_;  // for the next call
  base::Outcome state_;
};

}  // namespace verbena::bootstrap
