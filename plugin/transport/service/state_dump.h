// The state of every connection of the process, written on request to the file of VERBENA_DUMP, or to the
// log. The caller does not wait; the service thread (progress_token.h) collects. It reads an idle connection
// itself. A connection with open requests answers in its thread's next call; one whose thread does not call
// is read from outside.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::transport {

enum class ReportCause : uint8_t {
  kSignal,   // somebody wants to know
  kStall,    // the first of the process; then not more often than each kStallReportMs
  kFailure,  // of a connection; only to a file, not more often than each kFailureReportMs
};
inline constexpr int64_t kStallReportMs = 300'000, kFailureReportMs = 10'000;

// From any thread, with or without a connection's token. `what` says what has happened. False: there was such
// a report not long ago, or reports of this kind are off.
bool request_report(ReportCause cause, const std::string& what);

// Takes the signal of VERBENA_DUMP_SIGNAL, if it names one. What does not work is logged; nothing else ends.
void start_reports();
// Gives it back. No report is under way any more.
void stop_reports();
// The thread that makes reports must not outlive the last connection.
void forget_reports_if_alone();

}  // namespace verbena::transport
