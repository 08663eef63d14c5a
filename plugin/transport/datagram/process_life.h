// The name by which other processes of the host know this process, and a test whether one of them has ended.
#pragma once

#include "protocol/datagram/greeting.h"

namespace verbena::transport::datagram {

// Two processes are on one host if the kernel's boot id, the process namespace and VERBENA_HOSTID are equal.
// `space` is 0 if the kernel does not report them.
protocol::datagram::ProcessName name_own_process();
// Returns whether this process, which has the same `space`, has ended; false if this cannot be determined.
bool has_ended(const protocol::datagram::ProcessName& process);

}  // namespace verbena::transport::datagram
