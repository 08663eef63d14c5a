// Finds the ranks that share a host, and passes file descriptors between them. Ranks share a host if they
// have the same kernel and the same network namespace. Different values of VERBENA_HOSTID separate ranks of
// one host, as if they were on several hosts.
#pragma once

#include <sys/un.h>

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/frame_link.h"

namespace verbena::bootstrap {

// Plain text of a fixed length; equal on one host, different on two.
struct HostKey {
  std::array<char, 128> text{};

  bool operator==(const HostKey&) const = default;
};

// Returns the key that identifies this host. `configured_id` is the value of VERBENA_HOSTID, of any length;
// empty if it is not set.
base::Result<HostKey> identify_host(std::string_view configured_id);

class HostDomain {
 public:
  // Finds the ranks of this host. Collective. Without `own`, the key of this host is computed, with
  // VERBENA_HOSTID.
  static base::Result<HostDomain> form(Bootstrap& bootstrap);
  static base::Result<HostDomain> form(Bootstrap& bootstrap, const HostKey& own);

  // The ranks of this host in ascending order, this rank included.
  const std::vector<uint32_t>& ranks() const { return ranks_; }
  uint32_t local_rank() const { return local_rank_; }

 private:
  std::vector<uint32_t> ranks_;
  uint32_t local_rank_ = 0;
};

// ---- File descriptors between the ranks of a host

// Descriptors are passed over Unix sockets with abstract names that exist only during one call. A client must
// belong to this user, as the kernel reports it, and must know a secret that was sent over the bootstrap.

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
  // Waits until a caller connects or sends, at most `max_ms`.
  void wait(int64_t max_ms) const;

  // Receives one message, if there is one. Messages of unauthenticated clients are dropped, the first one
  // with a line in the log. A client that sends nothing does not delay the others: each call checks it again,
  // until it has been silent for a second.
  base::Result<Verdict> receive(Arrival& arrival);
  // Sends rank `from`'s descriptor to the socket at `to`. Returns false if that is not possible now; then
  // call it again. Fails if `to` belongs to another user.
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

// Collective over the whole bootstrap, including ranks that are alone on their host. `own` has a descriptor
// or kNoDescriptor for each rank of this host, in the order of domain.ranks(); the caller keeps these
// descriptors. The result has the descriptors that the other ranks sent, closed on exec. Its entry is empty
// for this rank itself and for a rank that sent none. If one rank fails, the call fails on all ranks.
base::Result<std::vector<base::FileDescriptor>> exchange_descriptors(Bootstrap& bootstrap,
                                                                     const HostDomain& domain,
                                                                     std::span<const int> own,
                                                                     int64_t timeout_ms = 0);
// Like exchange_descriptors(), with the same descriptor for all ranks.
base::Result<std::vector<base::FileDescriptor>> share_descriptor(Bootstrap& bootstrap,
                                                                 const HostDomain& domain, int own,
                                                                 int64_t timeout_ms = 0);

}  // namespace verbena::bootstrap
