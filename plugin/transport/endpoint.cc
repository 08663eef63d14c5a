#include "transport/endpoint.h"

#include "base/log.h"
#include "base/parameters.h"
#include "base/text.h"
#include "transport/state_report.h"

namespace verbena::transport {

void Endpoint::join_roster() {
  is_in_roster_ = true;
  Roster::instance().add(this);
}

void Endpoint::leave_roster() {
  is_in_roster_ = false;
  Roster::instance().remove(this);
  forget_reports_if_alone();
}

void Endpoint::tell_now() {
  is_asked_.store(false, std::memory_order_relaxed);
  Roster::instance().answer(this, describe());
}

void Endpoint::report_failure() {
  if (is_in_roster_ && request_report(ReportCause::kFailure, describe_briefly() + " failed")) tell_now();
}

void Endpoint::report_stall(const std::string& cause, uint32_t open, int64_t waited_ns) {
  const std::string what = describe_briefly() + ": stall: " + cause + "; " + std::to_string(open) +
                           " requests are open, none has become done for " + base::show_duration(waited_ns);
  base::log_warn("%s (VERBENA_STALL_WARNING_MS %lld ms)", what.c_str(),
                 static_cast<long long>(base::parameters().stall_warning_ms));
  request_report(ReportCause::kStall, what);
}

Telling Endpoint::tell_nothing() const {
  return {describe_briefly() + ": its thread does not call, and the system shows nothing from outside\n"};
}

// On the service thread, as the report is made there. While the data thread has the turn, the wish makes it
// look into is_asked_.
bool Endpoint::tell(Telling& telling) {
  if (enter_as_service()) {
    is_asked_.store(false, std::memory_order_relaxed);
    telling = describe();
    leave_as_service();
    return true;
  }
  is_asked_.store(true, std::memory_order_relaxed);
  want();
  return false;
}

}  // namespace verbena::transport
