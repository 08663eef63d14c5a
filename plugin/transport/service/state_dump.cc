#include "transport/service/state_dump.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/dump_file.h"
#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/signal_event.h"
#include "base/text.h"
#include "transport/service/observation.h"
#include "transport/service/progress_token.h"
#include "transport/service/registry.h"

namespace verbena::transport {

namespace {

// Time for threads to call the plugin; threads with open requests call it continuously.
constexpr int64_t kPatienceMs = 500;
constexpr int64_t kPollMs = 2;
constexpr int64_t kNever = INT64_MAX;

struct DumpRequest {
  ReportCause cause = ReportCause::kSignal;
  std::string what;
};

// Returns a text such as `2026-11-21T14:05:09Z`.
std::string show_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void log_lines(const std::string& text, bool is_warning) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    is_warning ? base::log_warn("%s", line.c_str()) : base::log_info("%s", line.c_str());
    begin = end + 1;
  }
}

// A dump that a signal requested is logged as warnings, so that it is shown at any log level. Any other dump
// is logged at level INFO, without idle connections.
void write_report(const DumpRequest& request, const std::vector<StateDump>& dumps) {
  const std::string path = base::expand_path(base::parameters().dump);
  const bool is_asked_for = request.cause == ReportCause::kSignal;
  std::string text;
  base::append(text, "state of %zu connections and handshakes, process %d, %s: %s\n", dumps.size(), getpid(),
               show_now().c_str(), request.what.c_str());
  size_t left_out = 0;
  for (const StateDump& dump : dumps) {
    if (dump.is_idle && path.empty() && !is_asked_for) {
      ++left_out;
    } else {
      text += dump.text;
    }
  }
  if (left_out != 0) base::append(text, "%zu idle connections are left out\n", left_out);
  text += "end of the state\n";
  if (path.empty() && request.cause == ReportCause::kFailure) return;  // only the trace wanted this report
  if (path.empty()) return log_lines(text, is_asked_for);
  if (base::append_to_file(path, text)) {
    base::log_info("state of %zu connections and handshakes was appended to %s: %s", dumps.size(),
                   path.c_str(), request.what.c_str());
  }
}

// Each trace has its own file name, so that a later stall does not overwrite it.
void write_trace(const DumpRequest& request) {
  static constexpr const char* kNames[] = {"signal", "stall", "failure"};
  static std::atomic<int> number{0};
  if (!is_traced()) return;
  write_trace_file(std::string(kNames[static_cast<size_t>(request.cause)]) + std::to_string(++number),
                   request.what);
}

class StateReport final : public ProgressToken {
 public:
  static StateReport& instance();
  // Returns whether a report was requested since the last stop(). Then the service thread knows this object.
  bool is_used() {
    const std::lock_guard lock(mutex_);
    return is_used_;
  }

  bool request(ReportCause cause, const std::string& what) {
    {
      const std::lock_guard lock(mutex_);
      const int64_t now_ns = base::monotonic_ns();
      if (!is_due(cause, now_ns)) return false;
      last_ns_[static_cast<size_t>(cause)] = now_ns;
      if (!is_pending_) {
        pending_ = {cause, what};
        round_ = Registry::instance().begin_round();
      }
      is_pending_ = is_used_ = true;
    }
    want();
    return true;
  }

  void stop() {
    retire();
    const std::lock_guard lock(mutex_);
    is_pending_ = is_running_ = is_used_ = false;
  }
  void forget_times() {
    const std::lock_guard lock(mutex_);
    last_ns_ = {};
  }

 private:
  bool is_due(ReportCause cause, int64_t now_ns) const {
    if (cause == ReportCause::kSignal) return true;
    if (cause == ReportCause::kFailure && base::parameters().dump.empty() && !is_traced()) return false;
    const int64_t spacing_ms = cause == ReportCause::kStall ? kStallReportMs : kFailureReportMs;
    const int64_t last_ns = last_ns_[static_cast<size_t>(cause)];
    return last_ns == 0 || now_ns - last_ns >= spacing_ms * base::kNsPerMs;
  }

  int64_t progress_idle() override {
    static_cast<void>(take_request());
    if (!begin()) return kNever;
    const int64_t now_ns = base::monotonic_ns();
    if (Registry::instance().ask(running_round_) != 0 && now_ns < deadline_ns_)
      return now_ns + kPollMs * base::kNsPerMs;
    write_report(running_, Registry::instance().take_dumps(running_round_));
    write_trace(running_);
    const std::lock_guard lock(mutex_);
    is_running_ = false;
    return is_pending_ ? now_ns : kNever;
  }

  // Returns true if there is a report to make.
  bool begin() {
    const std::lock_guard lock(mutex_);
    if (is_running_) return true;
    if (!is_pending_) return false;
    running_ = std::move(pending_);
    running_round_ = round_;
    deadline_ns_ = base::monotonic_ns() + kPatienceMs * base::kNsPerMs;
    is_running_ = true;
    is_pending_ = false;
    return true;
  }

  std::mutex mutex_;  // guards the next six members, which several threads use
  DumpRequest pending_;
  bool is_pending_ = false, is_running_ = false, is_used_ = false;
  uint64_t round_ = 0;
  std::array<int64_t, 3> last_ns_{};  // by cause
  DumpRequest running_;
  uint64_t running_round_ = 0;
  int64_t deadline_ns_ = 0;
};

// The registry and the report are destroyed together, because a member of the registry may request a report.
struct Shared {
  Registry registry;
  StateReport report;

  static Shared& get() {
    static const base::Lasting<Shared> shared;
    return *shared;
  }
  bool is_idle() { return registry.is_empty() && !report.is_used(); }
};

StateReport& StateReport::instance() {
  return Shared::get().report;
}

int find_signal(base::DumpSignal signal) {
  switch (signal) {
    case base::DumpSignal::kUsr1:
      return SIGUSR1;
    case base::DumpSignal::kUsr2:
      return SIGUSR2;
    case base::DumpSignal::kHup:
      return SIGHUP;
    case base::DumpSignal::kQuit:
      return SIGQUIT;
    default:
      return 0;
  }
}

}  // namespace

Registry& Registry::instance() {
  return Shared::get().registry;
}

bool request_report(ReportCause cause, const std::string& what) {
  return StateReport::instance().request(cause, what);
}

void start_reports() {
  // Created now, in the first init, so that it is destroyed after all callers of stop_reports() when the
  // library is unloaded.
  static_cast<void>(StateReport::instance());
  prepare_observations();
  const int signal = find_signal(base::parameters().dump_signal);
  if (signal == 0) return;
  const auto on_signal = [](void*) { request_report(ReportCause::kSignal, "requested by a signal"); };
  if (base::take_signal(signal, on_signal, nullptr)) return;
  base::log_warn(
      "dump: VERBENA_DUMP_SIGNAL has no effect (the previous line gives the cause). Choose another signal");
}

void stop_reports() {
  base::release_signal();
  StateReport::instance().stop();
  StateReport::instance().forget_times();
  write_last_observations();
}

void forget_reports_if_alone() {
  if (Registry::instance().is_empty()) StateReport::instance().stop();
}

}  // namespace verbena::transport
