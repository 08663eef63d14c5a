// Every connection end of the process that is observed, and what the closed ones leave behind: their counts
// for as long as the process lives, the events of the last of them.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "observe/connection.h"
#include "observe/totals.h"

namespace verbena::observe {

// Any thread.
class Registry {
 public:
  static Registry& instance();
  bool is_idle();  // nothing is open

  std::shared_ptr<Connection> open(Labels labels, uint32_t trace_events);
  // Nobody writes to it any more. How many are left open.
  size_t close(const std::shared_ptr<Connection>& connection);
  size_t count_open();

  Totals read_totals();
  // In the order of opening.
  std::vector<std::shared_ptr<const Connection>> list();

 private:
  // So many peers that are gone keep their names; the counts of further ones are added to those of "others".
  static constexpr size_t kMostClosedPeers = 1024;
  static constexpr size_t kMostClosedConnections = 64;  // whose events are kept

  void keep(const Connection& connection);

  std::mutex mutex_;  // guards all below
  uint64_t opened_ = 0;
  std::vector<std::shared_ptr<Connection>> open_;
  std::deque<std::shared_ptr<Connection>> closed_;
  std::set<EndKey> closed_peers_;
  Totals closed_totals_;
};

}  // namespace verbena::observe
