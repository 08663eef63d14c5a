#include "device/bootstrap/unix_post.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "base/random.h"

namespace verbena::bootstrap {
namespace {

constexpr int kBacklogMessages = 1024;
constexpr int64_t kPacketMs = 1000;  // a sender that has connected has sent, too, or is a stranger
constexpr size_t kMaxCallers = 64;   // that are silent: the next ones wait for a place

struct Packet {
  uint64_t magic = kMagic;
  uint32_t rank = 0;
  uint32_t has_descriptor = 0;
  Nonce secret{};
};

// Room for one descriptor.
union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

struct UnixAddress {
  sockaddr_un address{};
  socklen_t length_bytes = 0;

  // Abstract: the name begins with a zero, lives as long as its socket, and touches no file system.
  explicit UnixAddress(const PostAddress& post) {
    address.sun_family = AF_UNIX;
    constexpr char kPrefix[] = "verbena-";
    std::memcpy(address.sun_path + 1, kPrefix, sizeof(kPrefix) - 1);
    char* letter = address.sun_path + sizeof(kPrefix);
    for (const uint8_t byte : post.name) {
      *letter++ = "0123456789abcdef"[byte >> 4];
      *letter++ = "0123456789abcdef"[byte & 15];
    }
    length_bytes = static_cast<socklen_t>(letter - reinterpret_cast<char*>(&address));
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

bool is_not_now(int error) {
  return error == EAGAIN || error == EINTR || error == ECONNABORTED;
}

// As the kernel saw the other end when it connected or began to listen.
bool is_of_our_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

base::FileDescriptor create_socket() {
  return base::FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

base::FileDescriptor take_descriptor(msghdr& message) {
  base::FileDescriptor taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len; at += sizeof(int)) {
      int descriptor = -1;  // padding has room for a second one: of several, the last is kept
      std::memcpy(&descriptor, reinterpret_cast<const char*>(part) + at, sizeof(descriptor));
      taken.reset(descriptor);
    }
  }
  return taken;
}

}  // namespace

base::Result<UnixPost> UnixPost::open() {
  UnixPost post;
  if (auto drawn = base::draw_random(post.address_.name, "bootstrap"); !drawn) return drawn.error();
  if (auto drawn = base::draw_random(post.address_.secret, "bootstrap"); !drawn) return drawn.error();
  post.socket_ = create_socket();
  const UnixAddress address(post.address_);
  if (!post.socket_ || bind(post.fd(), address.get(), address.length_bytes) != 0 ||
      listen(post.fd(), kBacklogMessages) != 0) {
    return base::fail_errno(base::Status::kSystem, errno, "bootstrap: no Unix socket to receive descriptors");
  }
  return post;
}

UnixPost::Verdict UnixPost::drop_stranger() {
  if (!has_warned_) {
    base::log_warn(
        "bootstrap: a stranger called where the descriptors of this host's ranks arrive: ignored, as will be "
        "all "
        "others");
  }
  has_warned_ = true;
  return Verdict::kStranger;
}

base::Outcome UnixPost::accept_all() {
  while (callers_.size() < kMaxCallers) {
    base::FileDescriptor caller(accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!caller && is_not_now(errno)) return {};
    if (!caller)
      return base::fail_errno(base::Status::kSystem, errno, "bootstrap: cannot receive a descriptor");
    if (is_of_our_user(caller.get())) {
      callers_.push_back({std::move(caller), base::Deadline::after_ms(kPacketMs)});
    } else {
      drop_stranger();
    }
  }
  return {};
}

base::Result<UnixPost::Verdict> UnixPost::receive(Arrival& arrival) {
  if (auto accepted = accept_all(); !accepted) return accepted.error();
  for (auto caller = callers_.begin(); caller != callers_.end(); ++caller) {
    Packet packet;
    iovec part{&packet, sizeof(packet)};
    Control control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    const ssize_t length = recvmsg(caller->socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (length < 0 && is_not_now(errno) && !caller->deadline.has_passed()) continue;
    callers_.erase(caller);
    base::FileDescriptor descriptor = length > 0 ? take_descriptor(message) : base::FileDescriptor();
    if (length != sizeof(packet) || packet.magic != kMagic || !is_same_nonce(packet.secret, address_.secret))
      return drop_stranger();
    if (packet.has_descriptor != 0 && !descriptor) {
      return base::fail(base::Status::kSystem,
                        "bootstrap: the descriptor of rank %u was lost: no room in this process (ulimit -n)?",
                        packet.rank);
    }
    arrival.rank = packet.rank;
    arrival.descriptor = std::move(descriptor);
    return Verdict::kArrived;
  }
  return Verdict::kNothing;
}

void UnixPost::wait(int64_t most_ms) const {
  std::vector<pollfd> polled{{fd(), POLLIN, 0}};
  for (const Caller& caller : callers_) polled.push_back({caller.socket.get(), POLLIN, 0});
  ::poll(polled.data(), polled.size(), static_cast<int>(most_ms));
}

base::Result<bool> UnixPost::send(const PostAddress& to, uint32_t from, int descriptor) {
  const base::FileDescriptor socket = create_socket();
  const UnixAddress address(to);
  if (!socket) return base::fail_errno(base::Status::kSystem, errno, "bootstrap: no Unix socket");
  if (connect(socket.get(), address.get(), address.length_bytes) != 0) {
    if (is_not_now(errno)) return false;  // it has many callers
    return base::fail_errno(base::Status::kRemote, errno, "bootstrap: a rank of this host cannot be reached");
  }
  if (!is_of_our_user(socket.get())) {
    return base::fail(base::Status::kRemote,
                      "bootstrap: who awaits the descriptors of this host's ranks is another user");
  }
  Packet packet;
  packet.rank = from;
  packet.has_descriptor = descriptor >= 0 ? 1 : 0;
  packet.secret = to.secret;
  iovec part{&packet, sizeof(packet)};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &descriptor, sizeof(descriptor));
  }
  if (sendmsg(socket.get(), &message, MSG_NOSIGNAL) == sizeof(packet)) return true;
  return base::fail_errno(base::Status::kSystem, errno, "bootstrap: cannot send descriptor %d", descriptor);
}

}  // namespace verbena::bootstrap
