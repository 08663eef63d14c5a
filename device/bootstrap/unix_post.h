// One rank's Unix socket for one exchange of descriptors: it takes in what the others send, and sends to
// them. Each message is one packet with at most one descriptor. No call blocks.
#pragma once

#include <sys/un.h>

#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/status.h"
#include "device/bootstrap/proof.h"

namespace verbena::bootstrap {

// How the others find a post, and prove that they may; travels over the bootstrap only. The name can be seen
// by everybody on the host, the secret cannot.
struct PostAddress {
  std::array<uint8_t, 16> name{};
  Nonce secret{};
};

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

}  // namespace verbena::bootstrap
