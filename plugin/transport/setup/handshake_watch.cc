#include "transport/setup/handshake_watch.h"

#include "base/log.h"
#include "base/parameters.h"
#include "base/text.h"
#include "transport/service/state_dump.h"

namespace verbena::transport {

WatchedHandshake::WatchedHandshake()
    : since_ns_(base::monotonic_ns()), stall_(base::parameters().stall_warning_ms * base::kNsPerMs) {}

void WatchedHandshake::unregister_self() {
  Registry::instance().remove(this);
  forget_reports_if_alone();
}

void WatchedHandshake::restart_watch() {
  since_ns_.store(base::monotonic_ns(), std::memory_order_relaxed);
  stall_.restart();
}

std::string WatchedHandshake::describe(const std::string& who, const char* wait) const {
  return who + ": " + wait + ", for " + base::show_duration(base::monotonic_ns() - since_ns()) +
         " of at most " + base::show_duration(base::parameters().connect_timeout_ms * base::kNsPerMs) + "\n";
}

void WatchedHandshake::warn_if_stalled() {
  if (!stall_.is_line_due(base::monotonic_ns() - since_ns())) return;
  const std::string text = dump_from_outside().text;
  const std::string line = "stall: " + text.substr(0, text.find('\n'));
  base::log_warn("%s (VERBENA_CONNECT_TIMEOUT_MS; VERBENA_STALL_WARNING_MS %lld ms)", line.c_str(),
                 static_cast<long long>(base::parameters().stall_warning_ms));
  request_report(ReportCause::kStall, line);
}

}  // namespace verbena::transport
