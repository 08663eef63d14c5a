// All observed connection ends of the process. For closed ends it keeps the counts as long as the process
// lives, and the events of the most recent ones.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "observe/connection.h"
#include "observe/totals.h"

namespace verbena::observe {

// Any thread may call these functions.
class Registry {
 public:
  static Registry& instance();
  bool is_idle();  // returns whether no connection is open

  std::shared_ptr<Connection> open(Labels labels, uint32_t trace_events,
                                   uint32_t open_messages = kOpenMessages);
  // Call it when no thread writes to the connection any more. Returns the number of open connections.
  size_t close(const std::shared_ptr<Connection>& connection);
  size_t count_open();

  Totals read_totals();
  // Returns the connections in the order in which they were opened.
  std::vector<std::shared_ptr<const Connection>> list();

 private:
  // This many closed peers keep their names; the counts of further ones are added to those of "others".
  static constexpr size_t kMaxClosedPeers = 1024;
  static constexpr size_t kMaxClosedConnections = 64;  // whose events are kept

  void keep(const Connection& connection);

  std::mutex mutex_;  // guards all below
  uint64_t opened_ = 0;
  std::map<uint64_t, std::shared_ptr<Connection>> open_;  // by id, hence in the order of opening
  std::deque<std::shared_ptr<Connection>> closed_;
  std::set<EndKey> closed_peers_;
  Totals closed_totals_;
};

}  // namespace verbena::observe
