// File descriptors between the ranks of a host, over Unix sockets of abstract names that only live for one
// call. Who connects must be of our user, as the kernel says, and know a secret that travelled over the
// bootstrap.
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
#include "bootstrap/bootstrap.h"
#include "bootstrap/host_domain.h"
#include "bootstrap/link.h"

namespace verbena::bootstrap {

// How the others find a post, and prove that they may; travels over the bootstrap only. The name can be seen
// by everybody on the host, the secret cannot.
struct PostAddress {
  std::array<uint8_t, 16> name{};
  Nonce secret{};
};

// One rank's Unix socket for one exchange of descriptors: it takes in what the others send, and sends to
// them. Each message is one packet with at most one descriptor. No call blocks.
class UnixPost {
 public:
  struct Arrival {
    uint32_t rank = 0;
    base::FileDescriptor descriptor;  // empty: it had none to give
  };
  enum class Verdict : uint8_t { kNothing, kStranger, kArrived };

  static base::Result<UnixPost> open();
  const PostAddress& address() const { return address_; }
  int fd() const { return socket_.get(); }
  // Until somebody calls or says something, `most_ms` at most.
  void wait(int64_t most_ms) const;

  // One message, if there is one. A stranger's is dropped, with a line in the log for the first of them. A
  // caller that says nothing is not waited for: it is looked at again at each call, for a second.
  base::Result<Verdict> receive(Arrival& arrival);
  // Of rank `from`, to the post at `to`. False: not now. `to` is not of our user: an error.
  static base::Result<bool> send(const PostAddress& to, uint32_t from, int descriptor);

 private:
  struct Caller {
    base::FileDescriptor socket;
    base::Deadline deadline;
  };
  base::Outcome accept_all();
  Verdict drop_stranger();

  base::FileDescriptor socket_;
  std::deque<Caller> callers_;  // of our user, and silent so far
  PostAddress address_;
  bool has_warned_ = false;
};

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
