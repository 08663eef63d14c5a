// Events of connections as a trace in Chrome's JSON format, which Perfetto (ui.perfetto.dev) and
// chrome://tracing open. Each connection end is a track of the process, each message a slice on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "observe/connection.h"

namespace verbena::observe {

struct TraceHead {
  std::string host;
  uint64_t process = 0;
  std::string cause;              // why the trace is written
  int64_t realtime_ahead_ns = 0;  // real time minus monotonic time, which the events have
};

std::string write_trace(const std::vector<std::shared_ptr<const Connection>>& connections,
                        const TraceHead& head);

}  // namespace verbena::observe
