// Which connections are observed (plugin/observe), and when what was seen is written: to the file of
// VERBENA_STATS by the service thread (progress_token.h), again and again; to the file of VERBENA_TRACE at
// what state_dump.h tells of. Both once more when the last connection closes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "observe/connection.h"
#include "transport/link/link.h"

namespace verbena::transport {

// `<device>:<port>`, as counters name a rail.
std::string name_rail(const verbs::Device& device);
// Null if nobody wants to know. At most so many messages are open at a time.
std::shared_ptr<observe::Connection> observe_end(observe::Direction direction, const std::string& peer,
                                                 std::vector<std::string> rails,
                                                 uint32_t open_messages = observe::kOpenMessages);
std::shared_ptr<observe::Connection> observe_end(observe::Direction direction, const std::string& peer,
                                                 Link& link);
// Nobody writes to it any more. Null is ignored, and what it leaves.
void end_observation(std::shared_ptr<observe::Connection>& observed);

// In the first init: at unloading what is made here goes after what still calls write_last_observations().
void prepare_observations();
bool is_traced();
// `name` comes into the file's name, `cause` into the trace. Any thread.
void write_trace_file(const std::string& name, const std::string& cause);
// Of connections that nobody has closed.
void write_last_observations();

}  // namespace verbena::transport
