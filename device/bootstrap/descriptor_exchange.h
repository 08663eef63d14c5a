// Passes file descriptors between the ranks of a host, over Unix sockets with abstract names that exist only
// during one call. A caller must belong to our user, as the kernel reports it, and must know a secret that
// was sent over the bootstrap.
#pragma once

#include <sys/un.h>

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/status.h"
#include "device/bootstrap/bootstrap.h"
#include "device/bootstrap/host_domain.h"
#include "device/bootstrap/link.h"

namespace verbena::bootstrap {

// The address of a socket, and the proof that a caller may use it; sent over the bootstrap only. Every
// process on the host can see the name, but not the secret.
struct PostAddress {
  std::array<uint8_t, 16> name{};
  Nonce secret{};
};

// One rank's Unix socket for one exchange of descriptors. Each message is one packet with at most one
// descriptor. Only wait() blocks.
class UnixPost {
 public:
  struct Arrival {
    uint32_t rank = 0;
    base::FileDescriptor descriptor;  // empty if the rank has none
  };
  enum class Verdict : uint8_t { kNothing, kStranger, kArrived };

  static base::Result<UnixPost> open();
  const PostAddress& address() const { return address_; }
  int fd() const { return socket_.get(); }
  // Waits until a caller connects or sends, at most `most_ms`.
  void wait(int64_t most_ms) const;

  // Receives one message, if there is one. Messages of strangers are dropped, the first one with a line in
  // the log. A silent caller does not hold up the others: each call checks it again, for a second.
  base::Result<Verdict> receive(Arrival& arrival);
  // Sends rank `from`'s descriptor to the socket at `to`. False: not now, call again. An error if `to`
  // belongs to another user.
  static base::Result<bool> send(const PostAddress& to, uint32_t from, int descriptor);

 private:
  struct Caller {
    base::FileDescriptor socket;
    base::Deadline deadline;
  };
  base::Outcome accept_all();
  Verdict drop_stranger();

  base::FileDescriptor socket_;
  std::deque<Caller> callers_;  // callers of our user that are silent so far
  PostAddress address_;
  bool has_warned_ = false;
};

inline constexpr int kNoDescriptor = -1;

// Collective over the whole bootstrap: ranks that are alone on their host take part too. `own` has one
// descriptor for each rank of our host, in the order of domain.ranks(), or kNoDescriptor; the caller keeps
// them. The result has the descriptors from the other ranks, closed on exec; our own place, and that of a
// rank without a descriptor for us, stay empty. If one rank fails, the call fails on all.
base::Result<std::vector<base::FileDescriptor>> exchange_descriptors(Bootstrap& bootstrap,
                                                                     const HostDomain& domain,
                                                                     std::span<const int> own,
                                                                     int64_t timeout_ms = 0);
// The same one to all.
base::Result<std::vector<base::FileDescriptor>> share_descriptor(Bootstrap& bootstrap,
                                                                 const HostDomain& domain, int own,
                                                                 int64_t timeout_ms = 0);

}  // namespace verbena::bootstrap
