#include "transport/failed_rails.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "transport/recovery_times.h"

namespace verbena::transport {

std::string FailedRails::describe() const {
  std::string text;
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) {
    // An idle queue pair does not notice that its port is down, so the port is checked too.
    const bool is_live = lives_.is_live(q);
    if (is_live && link_.is_healthy(q)) continue;
    if (!text.empty()) text += "; ";
    text += is_live ? link_.describe(q) + ": the port is down" : causes_[q];
  }
  return text;
}

void FailedRails::log_loss(uint32_t queue_pair) const {
  base::log_warn("%s %s: %s; %u of %u queue pairs are left", direction_, peer_.c_str(),
                 causes_[queue_pair].c_str(), lives_.count_live(), link_.queue_pairs());
}

bool FailedRails::is_any_healthy() const {
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) {
    if (lives_.is_live(q) && link_.is_healthy(q)) return true;
  }
  return false;
}

std::string FailedRails::find_dying(uint32_t queue_pair, int64_t waited_ns) {
  if (!lives_.is_live(queue_pair)) return {};
  if (link_.has_lost_address(queue_pair, waited_ns)) return link_.describe_lost_address(queue_pair);
  int64_t& since_ns = down_since_ns_[queue_pair];
  if (link_.is_healthy(queue_pair)) {
    since_ns = 0;
    return {};
  }
  const int64_t now_ns = base::monotonic_ns();
  if (since_ns == 0) since_ns = now_ns;
  const bool is_replaceable = base::parameters().failover && is_any_healthy();
  const bool is_in_vain = std::min(waited_ns, now_ns - since_ns) >= find_down_patience_ns();
  return is_replaceable || is_in_vain ? link_.describe(queue_pair) + ": the port is down" : std::string();
}

std::string FailedRails::describe_last(uint32_t queue_pair) const {
  const std::string& cause = causes_[queue_pair];
  return (cause.empty() ? std::string() : ", failed last because: " + cause) + "\n";
}

}  // namespace verbena::transport
