#pragma once

#include "common/tcp.h"
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

// Connects the tools of two hosts. The client connects twice: the first connection is between the two drivers
// and starts with the client's workload; the second one, which has the token of the first, is between the
// workers.
struct Meeting {
  TcpConnection drivers;
  TcpConnection workers;
};

// Waits for one client and adopts its workload, which must be for the run in `options`. Refuses connections
// that are not from verbena-perf. Throws ToolError, after it has told the client if there is one.
Meeting await_client(TcpListener& listener, PerfOptions& options);

Meeting call_server(const PerfOptions& options);

}  // namespace verbena::tools::perf
