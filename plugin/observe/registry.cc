#include "observe/registry.h"

#include <algorithm>
#include <utility>

#include "base/lasting.h"

namespace verbena::observe {

Registry& Registry::instance() {
  static const base::Lasting<Registry> registry;
  return *registry;
}

bool Registry::is_idle() {
  return count_open() == 0;
}

std::shared_ptr<Connection> Registry::open(Labels labels, uint32_t trace_events, uint32_t open_messages) {
  auto connection = std::make_shared<Connection>(std::move(labels), trace_events, open_messages);
  const std::lock_guard lock(mutex_);
  connection->set_id(++opened_);
  open_.emplace(connection->id(), connection);
  return connection;
}

size_t Registry::close(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  if (open_.erase(connection->id()) != 0) {
    keep(*connection);
    if (connection->recorder().is_on()) closed_.push_back(connection);
    if (closed_.size() > kMaxClosedConnections) closed_.pop_front();
  }
  return open_.size();
}

void Registry::keep(const Connection& connection) {
  const EndKey end{connection.labels().direction, connection.labels().peer};
  if (closed_peers_.size() < kMaxClosedPeers) closed_peers_.insert(end);
  const std::string peer = closed_peers_.contains(end) ? end.peer : "others";
  Totals totals = connection.read(peer);
  totals.ends[{end.direction, peer}].open_requests = totals.ends[{end.direction, peer}].connections = 0;
  closed_totals_.add(totals);
}

size_t Registry::count_open() {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

Totals Registry::read_totals() {
  const std::lock_guard lock(mutex_);
  Totals totals = closed_totals_;
  for (const auto& [id, connection] : open_) totals.add(connection->read(connection->labels().peer));
  return totals;
}

std::vector<std::shared_ptr<const Connection>> Registry::list() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Connection>> all(closed_.begin(), closed_.end());
  for (const auto& [id, connection] : open_) all.push_back(connection);
  std::ranges::sort(all, {}, [](const auto& connection) { return connection->id(); });
  return all;
}

}  // namespace verbena::observe
