// File descriptors between the ranks of a host, over Unix sockets of abstract names that only live for one
// call. Who connects must be of our user, as the kernel says, and know a secret that travelled over the
// bootstrap.
#pragma once

#include <span>
#include <vector>

#include "base/file_descriptor.h"
#include "device/bootstrap/bootstrap.h"
#include "device/bootstrap/host_domain.h"

namespace verbena::bootstrap {

inline constexpr int kNoDescriptor = -1;

// Collective over the whole bootstrap: ranks that are alone on their host take part too. `own` has one
// descriptor for each rank of our host, in the order of domain.ranks(), or kNoDescriptor where there is
// nothing to give; they stay the caller's. The result has what each gave us, closed on exec; our own place
// and what was not given stay empty. One rank's failure is everybody's.
base::Result<std::vector<base::FileDescriptor>> exchange_descriptors(Bootstrap& bootstrap,
                                                                     const HostDomain& domain,
                                                                     std::span<const int> own,
                                                                     int64_t timeout_ms = 0);
// The same one to all.
base::Result<std::vector<base::FileDescriptor>> share_descriptor(Bootstrap& bootstrap,
                                                                 const HostDomain& domain, int own,
                                                                 int64_t timeout_ms = 0);

}  // namespace verbena::bootstrap
