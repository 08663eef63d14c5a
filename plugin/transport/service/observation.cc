#include "transport/service/observation.h"

#include <unistd.h>

#include <cstring>
#include <ctime>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/dump_file.h"
#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"
#include "observe/prometheus.h"
#include "observe/registry.h"
#include "observe/trace.h"
#include "transport/service/progress_token.h"

namespace verbena::transport {

namespace {

constexpr unsigned kForAll = 0644, kForOwner = 0600;  // another user may collect counters

int64_t realtime_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Writes the file of VERBENA_STATS while connections are open.
class StatsFile final : public ProgressToken {
 public:
  static StatsFile& instance() {
    static const base::Lasting<StatsFile> file;
    return *file;
  }
  bool is_idle() { return observe::Registry::instance().is_idle(); }

  void start() {
    if (!base::parameters().stats.empty()) want();
  }
  void stop() {
    retire();
    write();
  }
  void write() {
    if (base::parameters().stats.empty()) return;
    const std::string path = base::expand_path(base::parameters().stats);
    const std::lock_guard lock(mutex_);
    const double now_s = static_cast<double>(realtime_ns()) * 1e-9;
    const std::string text = observe::write_prometheus(observe::Registry::instance().read_totals(),
                                                       static_cast<uint64_t>(getpid()), now_s);
    const int error = base::replace_file(path, text, kForAll);
    if (error != 0 && error != last_error_)  // logged once, not for each attempt
      base::log_warn("stats: cannot write %s (VERBENA_STATS): %s (errno %d)", path.c_str(), strerror(error),
                     error);
    last_error_ = error;
  }

 private:
  int64_t progress_idle() override {
    static_cast<void>(take_request());
    write();
    return base::monotonic_ns() + base::parameters().stats_interval_ms * base::kNsPerMs;
  }

  std::mutex mutex_;  // serialises writers; guards the members below
  int last_error_ = 0;
};

// Converts `trace.json` to `trace.<name>.json`.
std::string insert_name(const std::string& path, const std::string& name) {
  if (name.empty()) return path;
  const std::string ending = ".json";
  const bool has_ending = path.size() > ending.size() && path.ends_with(ending);
  return (has_ending ? path.substr(0, path.size() - ending.size()) : path) + "." + name +
         (has_ending ? ending : "");
}

// Logs a line for each direction and path, with all messages of the process so far.
void log_latencies() {
  const observe::Totals totals = observe::Registry::instance().read_totals();
  for (const auto direction :
       {observe::Direction::kSend, observe::Direction::kReceive, observe::Direction::kOneSided}) {
    for (const auto path : {observe::Path::kStaged, observe::Path::kDirect}) {
      const observe::PathTotals sum = totals.sum(direction, path);
      const uint64_t timed = std::accumulate(sum.latency.begin(), sum.latency.end(), uint64_t{0});
      if (timed == 0) continue;
      base::log_info("latencies: %s %s: %llu messages, mean %.1f us, median %.1f us, 99th percentile %.1f us",
                     path == observe::Path::kStaged ? "staged" : "direct",
                     direction == observe::Direction::kSend      ? "sends"
                     : direction == observe::Direction::kReceive ? "receives"
                                                                 : "one-sided operations",
                     static_cast<unsigned long long>(sum.messages),
                     static_cast<double>(sum.latency_sum_ns) / static_cast<double>(timed) * 1e-3,
                     static_cast<double>(observe::find_quantile_ns(sum, 0.5)) * 1e-3,
                     static_cast<double>(observe::find_quantile_ns(sum, 0.99)) * 1e-3);
    }
  }
}

}  // namespace

void prepare_observations() {
  static_cast<void>(observe::Registry::instance());
  static_cast<void>(StatsFile::instance());
}

bool is_traced() {
  return !base::parameters().trace.empty() && base::parameters().trace_events != 0;
}

std::string name_rail(const verbs::Device& device) {
  return device.name() + ":" + std::to_string(device.port_number());
}

std::shared_ptr<observe::Connection> observe_end(observe::Direction direction, const std::string& peer,
                                                 std::vector<std::string> rails, uint32_t open_messages) {
  const auto& parameters = base::parameters();
  if (parameters.stats.empty() && !is_traced() && !parameters.profiler) return nullptr;
  const auto events = static_cast<uint32_t>(is_traced() ? parameters.trace_events : 0);
  auto observed =
      observe::Registry::instance().open({direction, peer, std::move(rails)}, events, open_messages);
  StatsFile::instance().start();
  return observed;
}

std::shared_ptr<observe::Connection> observe_end(observe::Direction direction, const std::string& peer,
                                                 Link& link) {
  std::vector<std::string> rails;
  for (uint32_t r = 0; r < link.rails(); ++r) rails.push_back(name_rail(link.device(r)));
  return observe_end(direction, peer, std::move(rails));
}

void end_observation(std::shared_ptr<observe::Connection>& observed) {
  const auto ended = std::exchange(observed, nullptr);
  if (ended == nullptr || observe::Registry::instance().close(ended) != 0) return;
  StatsFile::instance().stop();
  log_latencies();
  write_trace_file("", "the last connection closed");
}

void write_trace_file(const std::string& name, const std::string& cause) {
  if (!is_traced()) return;
  const std::string path = insert_name(base::expand_path(base::parameters().trace), name);
  const observe::TraceHead head{base::expand_path("%h"), static_cast<uint64_t>(getpid()), cause,
                                realtime_ns() - base::monotonic_ns()};
  const std::string text = observe::write_trace(observe::Registry::instance().list(), head);
  const int error = base::replace_file(path, text, kForOwner);
  if (error != 0)
    base::log_warn("trace: cannot write %s (VERBENA_TRACE): %s (errno %d)", path.c_str(), strerror(error),
                   error);
  else
    base::log_info("trace: written to %s: %s", path.c_str(), cause.c_str());
}

void write_last_observations() {
  if (observe::Registry::instance().is_idle()) return;
  StatsFile::instance().write();
  write_trace_file("", "the plugin was finalized");
}

}  // namespace verbena::transport
