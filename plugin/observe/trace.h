// Events of connections as a trace in Chrome's JSON format, which Perfetto (ui.perfetto.dev) and
// chrome://tracing open: a process, a track for each connection end, a slice for each message.
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
