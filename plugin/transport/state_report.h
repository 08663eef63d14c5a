// The state of every connection of the process, told on request: to the file of VERBENA_DUMP, or to the log.
// Who asks goes on at once; the service thread (attendance.h) collects. A connection that rests is looked at
// there; one with open requests tells of itself in its thread's next call; one whose thread does not call is
// looked at from outside.
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

// From any thread, with or without a connection's turn. `what` says what has happened. False: there was such
// a report not long ago, or nobody wants it.
bool request_report(ReportCause cause, const std::string& what);

// Takes the signal of VERBENA_DUMP_SIGNAL, if it names one. What does not work is logged; nothing else ends.
void start_reports();
// Gives it back. No report is under way any more.
void stop_reports();
// The thread that makes reports must not outlive the last connection.
void forget_reports_if_alone();

}  // namespace verbena::transport
