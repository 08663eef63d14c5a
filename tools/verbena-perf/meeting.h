#pragma once
#include <string>
#include <vector>

#include "common/tcp.h"
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

// How the tools of two hosts find each other. The client calls twice: the first connection joins the two
// drivers and begins with the client's workload, the second one, which names the first, joins the two
// workers.
struct Meeting {
  TcpConnection drivers;
  TcpConnection workers;
};

// Waits for one client and adopts its workload, which must be of the run that `options` names. Callers that
// are no verbena-perf are turned away. Throws ToolError, having told the client too where there is one.
Meeting await_client(TcpListener& listener, Options& options);

Meeting call_server(const Options& options);

}  // namespace verbena::tools::perf
