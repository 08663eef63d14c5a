// Collective calls over the tree: every rank's contribution is relayed up to rank 0, and the result comes
// down. A rank that fails, or loses a neighbour, notifies all others, so that no rank waits until its
// timeout. When the first rank's deadline has passed, rank 0 names the missing ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bootstrap/callers.h"
#include "bootstrap/collective_call.h"
#include "bootstrap/frame_link.h"
#include "bootstrap/messages.h"

namespace verbena::bootstrap {

// One rank's connections in the tree: to its parent, and from its children as they connect. Carries frames
// without interpreting them. Only wait() blocks.
class TreeLinks {
 public:
  struct Place {
    TreeShape shape;
    uint32_t rank = 0;
    Nonce nonce{}, secret{};  // of the Meeting
    bool is_loopback_only = false;
  };
  // A frame and the index of the link over which it arrived. The parent's link has index 0, except in the
  // root.
  struct Arrival {
    size_t neighbour;
    Record record;
  };

  explicit TreeLinks(const Place& place);
  // Opens the listener for our children; does nothing in a rank without children.
  base::Outcome listen();
  const base::SocketAddress& address() const { return callers_.address(); }
  base::Outcome connect_parent(const base::SocketAddress& address);

  // Accepts children, and sends and receives as much as possible without waiting.
  void advance();
  // Waits until something can be done, at most `max_ms`.
  void wait(int64_t max_ms);

  std::optional<Arrival> take();
  // Sends a frame. If the neighbour has not connected yet, the frame is sent when it has. If the neighbour is
  // gone, the frame is dropped.
  void send(size_t neighbour, const Record& record);
  void send_to_children(const Record& record);
  void send_up(const Record& record) { send(0, record); }
  // Sends to all neighbours except `from`.
  void spread(const Record& record, std::optional<size_t> from);
  bool is_flushed() const;

  size_t count() const { return neighbours_.size(); }
  uint32_t rank_of(size_t neighbour) const { return neighbours_[neighbour].rank; }
  size_t neighbour_of(uint32_t rank) const;
  bool has_parent() const { return place_.rank != 0; }
  bool is_parent(size_t neighbour) const { return has_parent() && neighbour == 0; }
  // Returns whether the neighbour's connection is closed and all its frames were taken.
  bool is_lost(size_t neighbour) const;
  bool has_come(size_t neighbour) const { return neighbours_[neighbour].link.has_value(); }
  const std::string& problem_of(size_t neighbour) const { return neighbours_[neighbour].link->problem(); }

 private:
  struct Neighbour {
    uint32_t rank;
    std::optional<FrameLink> link;
    std::vector<Record> waiting;  // frames for a neighbour that has not connected yet

    void attach(FrameLink made);
  };
  void accept_children();
  Callers::Verdict judge(const Hello& hello) const;
  const Neighbour* find_child(uint32_t rank) const;

  Place place_;
  Callers callers_;  // who may be our children
  std::vector<Neighbour> neighbours_;
};

class TreeCarrier final : public Carrier {
 public:
  // Children may still have to connect: the first call waits for them.
  TreeCarrier(const TreeLinks::Place& place, TreeLinks links, int64_t timeout_ms);
  // Notifies the neighbours that this rank leaves in order.
  ~TreeCarrier() override;

  base::Outcome all_gather(Operation what, std::span<const std::byte> mine,
                           std::span<std::byte> all) override;
  base::Outcome exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) override;
  base::Outcome check_ranks() override;
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
  // Notifies all neighbours except `from`, logs the failure, and ends this carrier.
  base::Error fail_all(const FailureNote& note, std::optional<size_t> from);

  TreeShape shape_;
  uint32_t rank_;
  int64_t timeout_ms_;
  TreeLinks links_;
  uint32_t sequence_ = 0;
  std::vector<bool> has_left_;             // by neighbour: said goodbye
  std::vector<TreeLinks::Arrival> early_;  // frames for the next call
  base::Outcome state_;
};

}  // namespace verbena::bootstrap
