#include "softverbs/wire/port.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "softverbs/shared/clock.h"
#include "softverbs/shared/config.h"
#include "softverbs/wire/crowd.h"
#include "softverbs/wire/requester.h"
#include "softverbs/wire/responder.h"
#include "softverbs/wire/secret.h"
#include "softverbs/wire/socket.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs::wire {
namespace {

constexpr int kBacklog = 1024;
constexpr size_t kMinCallers = 8, kMaxCallers = 256;
constexpr uint64_t kCallerPatienceNs = 5'000'000'000, kPauseNs = 100'000'000;

}  // namespace

bool Port::listen(uint16_t number, int& error) {
  sockaddr_storage at;
  const socklen_t bytes = fill_socket_address(address, number, at);
  listener_ = open_socket(at.ss_family);
  constexpr int kOn = 1;
  if (listener_ >= 0) setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof(kOn));
  if (listener_ >= 0 && bind(listener_, reinterpret_cast<sockaddr*>(&at), bytes) == 0 &&
      ::listen(listener_, kBacklog) == 0) {
    return true;
  }
  error = errno;
  stop_listening();
  return false;
}

void Port::stop_listening() {
  drop(listener_);
  listener_ = -1;
}

// After a failure, the next call continues at the same step.
int Port::start() {
  const int64_t wanted = get_config().wire_threads;
  const auto count = static_cast<size_t>(
      std::clamp<int64_t>(wanted != 0 ? wanted : sysconf(_SC_NPROCESSORS_ONLN) / 2, 1, get_config().streams));
  while (loops.size() < count) {
    auto loop = std::make_unique<Loop>();
    if (!loop->open()) return errno;
    loops.push_back(std::move(loop));
  }
  if (!loops[0]->housekeeping) {
    max_callers_ = get_descriptor_share(8, kMinCallers, kMaxCallers);
    if (!loops[0]->add(listener_, EPOLLIN, *this)) return errno;
    loops[0]->housekeeping = [this] { keep_house(); };
  }
  for (const auto& loop : loops) {
    if (const int error = loop->start(); error != 0) return error;
  }
  return 0;
}

// If the maximum number of clients is reached, serves earlier clients first, because their data may have
// arrived already.
void Port::on_ready(uint32_t) {
  if (callers_.size() >= max_callers_) make_room();
  while (callers_.size() < max_callers_) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof(from);
    const int fd =
        keep(accept4(listener_, reinterpret_cast<sockaddr*>(&from), &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) pause();
    if (fd < 0) return;
    tune_socket(fd);
    auto caller = std::make_shared<Caller>(*this, fd, read_socket_address(from), read_clock_ns());
    callers_[fd] = caller;
    if (!loops[0]->add(fd, EPOLLIN, *caller)) dismiss(*caller);  // the client will connect again
  }
}

// Drops the client that has been silent for longest.
void Port::make_room() {
  if (callers_.empty()) return;
  const auto found = find_most_crowded(
      callers_, [](const auto& entry) { return std::pair(entry.second->address, entry.second->since_ns); });
  const std::shared_ptr<Caller> caller = found->second;
  caller->on_ready(EPOLLIN);
  if (caller->fd >= 0) dismiss(*caller);
}

// No descriptor is left. If the listener stayed in the epoll set, it would be reported as ready repeatedly.
void Port::pause() {
  make_room();
  if (paused_since_ns_ == 0) loops[0]->change(listener_, 0, *this);
  paused_since_ns_ = read_clock_ns();
}

void Port::Caller::on_ready(uint32_t) {
  if (fd < 0) return;
  auto* to = is_answered ? reinterpret_cast<uint8_t*>(&ready) : reinterpret_cast<uint8_t*>(&hello);
  const size_t wanted = is_answered ? sizeof(ready) : sizeof(hello);
  const ssize_t count = recv(fd, to + received, wanted - received, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return port.dismiss(*this);
  received += static_cast<size_t>(count);
  // The Hello of another version may be shorter.
  if (!is_answered && received >= offsetof(Hello, refusal) && !is_of_our_version(hello))
    return port.refuse(*this, kOtherVersion);
  if (received < wanted) return;
  if (!is_answered) return port.judge(*this);
  if (!check_ready(hello, answer, ready)) return port.dismiss(*this);
  port.admit(*this);
}

void Port::dismiss(Caller& caller) {
  const auto known = callers_.find(caller.fd);
  loops[0]->retire(known->second);
  loops[0]->remove(caller.fd);
  drop(caller.fd);
  caller.fd = -1;
  callers_.erase(known);
}

void Port::refuse(Caller& caller, uint16_t why) {
  Hello answer = caller.hello;
  answer.magic = kMagic;
  answer.version = kProtocolVersion;
  answer.refusal = why;
  send(caller.fd, &answer, sizeof(answer), MSG_DONTWAIT | MSG_NOSIGNAL);
  dismiss(caller);
}

void Port::judge(Caller& caller) {
  const Hello& hello = caller.hello;
  const bool is_true = memcmp(hello.source, caller.address.raw, sizeof(hello.source)) == 0 &&
                       memcmp(hello.destination, address.raw, sizeof(hello.destination)) == 0;
  uint16_t refusal = check_hello(hello, wire.slot());
  if (refusal == kWelcome && !is_true) refusal = kOtherProcess;
  const Protection ours = get_protection();
  if (refusal == kWelcome && has_key() != (hello.protection != kOpen))
    refusal = has_key() ? kKeyMissing : kKeyUnknown;
  if (refusal == kWelcome && ours != hello.protection)
    refusal = ours == kEncrypted ? kEncryptionMissing : kEncryptionUnknown;
  if (refusal != kWelcome) return refuse(caller, refusal);
  if (!has_key()) return admit(caller);
  caller.answer = hello;
  if (!sign_welcome(hello, caller.answer)) return dismiss(caller);
  send(caller.fd, &caller.answer, sizeof(caller.answer), MSG_DONTWAIT | MSG_NOSIGNAL);
  caller.is_answered = true;
  caller.received = 0;
}

// From now on the stream belongs to one of the loops.
void Port::admit(Caller& caller) {
  const Hello hello = caller.hello;
  std::shared_ptr<ProcessLink> link = wire.join(*this, hello);
  if (link != nullptr && hello.stream >= link->hello.streams) link.reset();
  if (link == nullptr) return refuse(caller, kNoSuchLink);
  std::shared_ptr<crypto::EncryptedStream> encryption;
  if (get_protection() == kEncrypted) encryption = make_encryption(hello, caller.answer, false);
  if (get_protection() == kEncrypted && encryption == nullptr) return dismiss(caller);
  if (has_key()) link->set_known();
  const int fd = caller.fd;
  loops[0]->remove(fd);
  const auto known = callers_.find(fd);
  loops[0]->retire(known->second);
  callers_.erase(known);
  caller.fd = -1;
  wire.limit_strangers();
  Loop& loop = get_loop(hello.stream);
  loop.post([link, fd, index = hello.stream, &loop, encryption] {
    link->add_stream(index, loop, fd, true, encryption);
  });
}

void Port::keep_house() {
  const uint64_t now_ns = read_clock_ns();
  std::vector<std::shared_ptr<Caller>> late;
  for (const auto& [fd, caller] : callers_) {
    if (now_ns - caller->since_ns > kCallerPatienceNs) late.push_back(caller);
  }
  for (const auto& caller : late) dismiss(*caller);
  if (paused_since_ns_ != 0 && now_ns - paused_since_ns_ > kPauseNs) {
    paused_since_ns_ = 0;
    loops[0]->change(listener_, EPOLLIN, *this);
  }
  wire.check_links(*this);
  check_deadlines(*this);
  check_held(*this);
}

}  // namespace verbena::softverbs::wire
