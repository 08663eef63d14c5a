#include "bootstrap/host_domain.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"
#include "bootstrap/messages.h"

namespace verbena::bootstrap {
namespace {

constexpr size_t kMaxIdLetters = 48;  // of what goes into a key as it is
constexpr const char* kBootIdFile = "/proc/sys/kernel/random/boot_id";
constexpr const char* kNetworkNamespace = "/proc/self/ns/net";

// The kernel's boot id, new with each boot; the host's name if it cannot be read.
std::string read_boot_id() {
  char text[64] = {};
  const base::FileDescriptor file(open(kBootIdFile, O_RDONLY | O_CLOEXEC));
  if (file && read(file.get(), text, 36) == 36) return text;
  gethostname(text, sizeof(text) - 1);
  return text;
}

// A long id is replaced by its first letters and a hash (FNV-1a) of all.
std::string shorten_id(std::string_view id) {
  if (id.size() <= kMaxIdLetters) return std::string(id);
  uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (const char letter : id) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100'0000'01b3;
  return std::string(id.substr(0, kMaxIdLetters - 20)) + std::to_string(hash);
}

}  // namespace

base::Result<HostKey> identify_host(std::string_view configured_id) {
  struct stat space {};
  if (stat(kNetworkNamespace, &space) != 0) {
    return base::fail_errno(base::Status::kSystem, errno, "bootstrap: cannot read the link %s",
                            kNetworkNamespace);
  }
  const std::string text =
      read_boot_id() + "/" + std::to_string(space.st_ino) + "/" + shorten_id(configured_id);
  HostKey key;
  std::copy_n(text.begin(), std::min(text.size(), key.text.size()), key.text.begin());
  return key;
}

base::Result<HostDomain> HostDomain::form(Bootstrap& bootstrap) {
  const auto key = identify_host(base::parameters().host_id);
  const base::Outcome found = key ? base::Outcome() : base::Outcome(key.error());
  if (auto agreed = bootstrap.all_agree(found, "VERBENA_HOSTID cannot be used"); !agreed)
    return agreed.error();
  return form(bootstrap, *key);
}

base::Result<HostDomain> HostDomain::form(Bootstrap& bootstrap, const HostKey& own) {
  const auto keys = bootstrap.gather(own);
  if (!keys) return keys.error();
  HostDomain domain;
  for (uint32_t rank = 0; rank < keys->size(); ++rank) {
    if (rank == bootstrap.rank()) domain.local_rank_ = static_cast<uint32_t>(domain.ranks_.size());
    if ((*keys)[rank] == own) domain.ranks_.push_back(rank);
  }
  return domain;
}

namespace {

constexpr int kBacklogMessages = 1024;
constexpr int64_t kPacketMs =
    1000;  // a rank sends as soon as it has connected; a caller that does not is a stranger
constexpr size_t kMaxCallers = 64;  // silent callers at a time; further ones have to wait

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

  // An abstract address: the name begins with a zero, exists as long as its socket, and is not in the file
  // system.
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

// Returns whether the kernel reports this user for the other end, at the time when it connected or began to
// listen.
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
      int descriptor = -1;  // the padding has room for a second one; the last one is kept
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
    return base::fail_errno(
        base::Status::kSystem, errno,
        "bootstrap: cannot create the Unix socket on which this rank receives file descriptors");
  }
  return post;
}

UnixPost::Verdict UnixPost::drop_stranger() {
  if (!has_warned_) {
    base::log_warn(
        "bootstrap: ignored a connection from a process that is not a rank of this job to the socket on "
        "which this rank receives file descriptors. Further such connections are ignored without a log line");
  }
  has_warned_ = true;
  return Verdict::kStranger;
}

base::Outcome UnixPost::accept_all() {
  // Limited, because clients may connect as fast as they are dropped.
  for (int i = 0; i < kBacklogMessages && callers_.size() < kMaxCallers; ++i) {
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
    const int error = length < 0 ? errno : 0;
    if (is_not_now(error) && !caller->deadline.has_passed()) continue;
    if (error != 0 && !is_not_now(error) && error != ECONNRESET) {  // ours: the packet is still there
      return base::fail_errno(base::Status::kSystem, error, "bootstrap: cannot receive a descriptor");
    }
    callers_.erase(caller);
    base::FileDescriptor descriptor = length > 0 ? take_descriptor(message) : base::FileDescriptor();
    if (length != sizeof(packet) || packet.magic != kMagic || !is_same_nonce(packet.secret, address_.secret))
      return drop_stranger();
    if (packet.has_descriptor != 0 && !descriptor) {
      return base::fail(base::Status::kSystem,
                        "bootstrap: the file descriptor that rank %u sent was lost, probably because this "
                        "process has too many open files. Raise `ulimit -n`",
                        packet.rank);
    }
    arrival.rank = packet.rank;
    arrival.descriptor = std::move(descriptor);
    return Verdict::kArrived;
  }
  return Verdict::kNothing;
}

void UnixPost::wait(int64_t max_ms) const {
  std::vector<pollfd> polled{{fd(), POLLIN, 0}};
  for (const Caller& caller : callers_) polled.push_back({caller.socket.get(), POLLIN, 0});
  ::poll(polled.data(), polled.size(), static_cast<int>(max_ms));
}

base::Result<bool> UnixPost::send(const PostAddress& to, uint32_t from, int descriptor) {
  const base::FileDescriptor socket = create_socket();
  const UnixAddress address(to);
  if (!socket)
    return base::fail_errno(base::Status::kSystem, errno, "bootstrap: cannot create a Unix socket");
  if (connect(socket.get(), address.get(), address.length_bytes) != 0) {
    if (is_not_now(errno)) return false;  // its queue of callers is full
    return base::fail_errno(base::Status::kRemote, errno,
                            "bootstrap: cannot connect to the Unix socket of another rank of this host");
  }
  if (!is_of_our_user(socket.get())) {
    return base::fail(base::Status::kRemote,
                      "bootstrap: another rank of this host belongs to a different user, so file descriptors "
                      "cannot be sent to that rank. Run all ranks as the same user");
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
  return base::fail_errno(base::Status::kSystem, errno, "bootstrap: cannot send file descriptor %d",
                          descriptor);
}

namespace {

constexpr int64_t kStepMs = 20;  // between two checks of the other ranks

bool is_not_now(const base::Result<bool>& sent) {
  return sent && !*sent;
}

class Exchange {
 public:
  Exchange(Bootstrap& bootstrap, const HostDomain& domain, std::span<const int> own, base::Deadline deadline)
      : bootstrap_(bootstrap),
        domain_(domain),
        own_(own.begin(), own.end()),
        deadline_(deadline),
        received_(own.size()),
        has_sent_(own.size()),
        has_come_(own.size()) {
    has_sent_[domain.local_rank()] = has_come_[domain.local_rank()] = true;
  }

  // On failure `text` says what failed.
  base::Outcome run(UnixPost& post, std::span<const PostAddress> addresses, std::string& text);
  std::vector<base::FileDescriptor> take() { return std::move(received_); }

 private:
  base::Outcome send_all(std::span<const PostAddress> addresses);
  base::Outcome receive_all(UnixPost& post);
  static bool is_all(const std::vector<bool>& marks) {
    return std::find(marks.begin(), marks.end(), false) == marks.end();
  }
  bool has_sent_all() const { return is_all(has_sent_); }
  bool is_done() const { return has_sent_all() && is_all(has_come_); }
  std::string describe_missing() const;

  Bootstrap& bootstrap_;
  const HostDomain& domain_;
  std::vector<int> own_;
  base::Deadline deadline_;
  std::vector<base::FileDescriptor> received_;  // these three by the rank's place on the host
  std::vector<bool> has_sent_, has_come_;
  base::Outcome first_failure_;
};

// A failure to send or receive does not end the exchange: the other ranks still get the descriptors that can
// be sent, and are notified of the failure afterwards.
base::Outcome Exchange::run(UnixPost& post, std::span<const PostAddress> addresses, std::string& text) {
  while (true) {
    if (auto sent = send_all(addresses); !sent && first_failure_.is_ok()) first_failure_ = sent;
    if (auto received = receive_all(post); !received && first_failure_.is_ok()) first_failure_ = received;
    if (first_failure_.has_failed() && has_sent_all()) {
      text = "cannot pass file descriptors";
      return first_failure_;
    }
    if (is_done()) return {};
    if (auto all_there = bootstrap_.check_ranks(); !all_there) return all_there;
    if (base::is_interrupted()) {
      text = "passing file descriptors was interrupted by a signal";
      return base::fail_errno(base::Status::kSystem, EINTR, "bootstrap: rank %u of %u: %s", bootstrap_.rank(),
                              bootstrap_.count_ranks(), text.c_str());
    }
    if (deadline_.has_passed()) {
      text = "timed out while passing file descriptors to the ranks of this host; waited for " +
             describe_missing();
      return base::fail(base::Status::kTimeout, "bootstrap: rank %u of %u: %s", bootstrap_.rank(),
                        bootstrap_.count_ranks(), text.c_str());
    }
    post.wait(std::min(deadline_.remaining_ms(), kStepMs));
  }
}

base::Outcome Exchange::send_all(std::span<const PostAddress> addresses) {
  base::Outcome first_failure;
  for (size_t i = 0; i < own_.size(); ++i) {
    if (has_sent_[i]) continue;
    const auto sent = UnixPost::send(addresses[domain_.ranks()[i]], bootstrap_.rank(), own_[i]);
    if (is_not_now(sent)) continue;
    has_sent_[i] = true;
    if (sent) continue;
    if (first_failure.is_ok()) first_failure = sent.error();
    // Marked as sent, so that the other rank does not wait for it; the other rank is told the reason
    // afterwards.
    has_sent_[i] =
        !is_not_now(UnixPost::send(addresses[domain_.ranks()[i]], bootstrap_.rank(), kNoDescriptor));
    own_[i] = kNoDescriptor;
  }
  return first_failure;
}

base::Outcome Exchange::receive_all(UnixPost& post) {
  while (true) {
    UnixPost::Arrival arrival;
    const auto verdict = post.receive(arrival);
    if (!verdict) return verdict.error();
    if (*verdict == UnixPost::Verdict::kNothing) return {};
    if (*verdict == UnixPost::Verdict::kStranger) continue;
    const auto& ranks = domain_.ranks();
    const auto place = std::lower_bound(ranks.begin(), ranks.end(), arrival.rank);
    if (place == ranks.end() || *place != arrival.rank)
      continue;  // it knows the secret, but its rank does not fit
    const auto index = static_cast<size_t>(place - ranks.begin());
    received_[index] = std::move(arrival.descriptor);
    has_come_[index] = true;
  }
}

std::string Exchange::describe_missing() const {
  std::vector<uint32_t> missing;
  for (size_t i = 0; i < has_come_.size(); ++i) {
    if (!has_come_[i] || !has_sent_[i]) missing.push_back(domain_.ranks()[i]);
  }
  return show_ranks(missing);
}

}  // namespace

base::Result<std::vector<base::FileDescriptor>> exchange_descriptors(Bootstrap& bootstrap,
                                                                     const HostDomain& domain,
                                                                     std::span<const int> own,
                                                                     int64_t timeout_ms) {
  const auto deadline =
      base::Deadline::after_ms(timeout_ms > 0 ? timeout_ms : base::parameters().bootstrap_timeout_ms);
  base::Outcome state;
  if (own.size() != domain.ranks().size()) {
    state = base::fail(base::Status::kInvalidArgument,
                       "bootstrap: %zu file descriptors were passed, but there are %zu ranks on this host",
                       own.size(), domain.ranks().size());
  }
  auto post = state.is_ok() ? UnixPost::open() : base::Result<UnixPost>(state.error());
  if (!post) state = post.error();
  // Either every rank has a socket, or no rank waits for descriptors.
  if (auto agreed = bootstrap.all_agree(state, "cannot pass file descriptors"); !agreed)
    return agreed.error();
  const auto addresses = bootstrap.gather(post->address());
  if (!addresses) return addresses.error();
  Exchange exchange(bootstrap, domain, own, deadline);
  std::string text;
  const base::Outcome done = exchange.run(*post, *addresses, text);
  // The socket is closed only after this call, when no rank sends any more.
  if (auto agreed = bootstrap.all_agree(done, text); !agreed) return agreed.error();
  return exchange.take();
}

base::Result<std::vector<base::FileDescriptor>> share_descriptor(Bootstrap& bootstrap,
                                                                 const HostDomain& domain, int own,
                                                                 int64_t timeout_ms) {
  std::vector<int> all(domain.ranks().size(), own);
  all[domain.local_rank()] = kNoDescriptor;
  return exchange_descriptors(bootstrap, domain, all, timeout_ms);
}

}  // namespace verbena::bootstrap
