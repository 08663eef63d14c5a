// Decides which connections are observed (plugin/observe), and when the results are written. The service
// thread (progress_token.h) writes the file of VERBENA_STATS periodically. The file of VERBENA_TRACE is
// written at the events of state_dump.h. Both are written once more when the last connection closes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "observe/connection.h"
#include "transport/link/link.h"

namespace verbena::transport {

// Returns `<device>:<port>`, the name of a rail in the counters.
std::string name_rail(const verbs::Device& device);
// Returns null if no output is enabled. `open_messages` is the maximum number of open messages.
std::shared_ptr<observe::Connection> observe_end(observe::Direction direction, const std::string& peer,
                                                 std::vector<std::string> rails,
                                                 uint32_t open_messages = observe::kOpenMessages);
std::shared_ptr<observe::Connection> observe_end(observe::Direction direction, const std::string& peer,
                                                 Link& link);
// Ends the observation. The caller must no longer write to it. Sets the pointer to null; a null pointer is
// ignored.
void end_observation(std::shared_ptr<observe::Connection>& observed);

// Called in the first init, so that these objects are destroyed after all callers of
// write_last_observations() when the library is unloaded.
void prepare_observations();
bool is_traced();
// `name` becomes part of the file's name, and `cause` part of the trace. Any thread may call it.
void write_trace_file(const std::string& name, const std::string& cause);
// Writes the results of connections that were never closed.
void write_last_observations();

}  // namespace verbena::transport
