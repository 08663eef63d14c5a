// Who this process is to others of its host, and which of them have ended.
#pragma once

#include "protocol/datagram/greeting.h"

namespace verbena::transport::datagram {

// Of a host: where the kernel's boot id, the process namespace and VERBENA_HOSTID are the same. Its space is
// 0 where the kernel does not say.
protocol::datagram::ProcessName name_own_process();
// Of our space. False also where that cannot be seen.
bool has_ended(const protocol::datagram::ProcessName& process);

}  // namespace verbena::transport::datagram
