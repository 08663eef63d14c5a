// Writes the state of every connection of the process to the file of VERBENA_DUMP or to the log. The caller
// requests a dump and does not wait; the service thread (progress_token.h) collects the states. It reads an
// idle connection itself. A connection with open requests answers in the next call of its thread. If its
// thread does not call the plugin, the service thread reads the state without synchronisation.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::transport {

enum class ReportCause : uint8_t {
  kSignal,   // a user has requested a dump
  kStall,    // the first of the process; then at most once in kStallReportMs
  kFailure,  // of a connection; only to a file, at most once in kFailureReportMs
};
inline constexpr int64_t kStallReportMs = 300'000, kFailureReportMs = 10'000;

// Requests a dump. Any thread may call it, with or without a connection's token. `what` describes the event.
// Returns false if there was such a report recently, or reports of this kind are disabled.
bool request_report(ReportCause cause, const std::string& what);

// Installs a handler for the signal of VERBENA_DUMP_SIGNAL, if it is set. Logs an error but continues if this
// fails.
void start_reports();
// Removes the handler. Afterwards no report is in progress.
void stop_reports();
// The thread that makes reports must end with the last connection.
void forget_reports_if_alone();

}  // namespace verbena::transport
