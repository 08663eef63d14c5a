#include "softverbs/wire/port.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "softverbs/clock.h"
#include "softverbs/config.h"
#include "softverbs/wire/requester.h"
#include "softverbs/wire/responder.h"
#include "softverbs/wire/socket.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs::wire {
namespace {

constexpr int kBacklog = 1024;
constexpr size_t kMaxCallers = 256;
constexpr uint64_t kCallerPatienceNs = 5'000'000'000;

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

void Port::start() {
  const auto cpus = static_cast<uint32_t>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1l));
  const uint32_t wanted = get_config().wire_threads;
  const uint32_t count = std::clamp(wanted != 0 ? wanted : cpus / 2, 1u, get_config().streams);
  for (uint32_t i = 0; i < count; ++i) {
    loops.push_back(std::make_unique<Loop>());
    if (!loops.back()->open()) warn("the wire has no event loop: %s", strerror(errno));
  }
  loops[0]->housekeeping = [this] { keep_house(); };
  loops[0]->add(listener_, EPOLLIN, *this);
  for (const auto& loop : loops) loop->start();
}

void Port::on_ready(uint32_t) {
  for (;;) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof(from);
    const int fd =
        keep(accept4(listener_, reinterpret_cast<sockaddr*>(&from), &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0) return;
    if (callers_.size() >= kMaxCallers) {
      drop(fd);
      continue;
    }
    tune_socket(fd);
    auto caller = std::make_shared<Caller>(*this, fd, read_socket_address(from), read_clock_ns());
    callers_[fd] = caller;
    loops[0]->add(fd, EPOLLIN, *caller);
  }
}

void Port::Caller::on_ready(uint32_t) {
  if (fd < 0) return;
  auto* to = reinterpret_cast<uint8_t*>(&hello) + received;
  const ssize_t count = recv(fd, to, sizeof(hello) - received, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return port.dismiss(*this);
  received += static_cast<size_t>(count);
  if (received == sizeof(hello)) port.admit(*this);
}

void Port::dismiss(Caller& caller) {
  const auto known = callers_.find(caller.fd);
  loops[0]->retire(known->second);
  loops[0]->remove(caller.fd);
  drop(caller.fd);
  caller.fd = -1;
  callers_.erase(known);
}

// The stream belongs to a loop of its own from here on.
void Port::admit(Caller& caller) {
  Hello hello = caller.hello;
  hello.refusal = check_hello(hello, wire.slot());
  const bool is_true = memcmp(hello.source, caller.address.raw, sizeof(hello.source)) == 0 &&
                       memcmp(hello.destination, address.raw, sizeof(hello.destination)) == 0;
  if (hello.refusal == kWelcome && !is_true) hello.refusal = kOtherProcess;
  std::shared_ptr<Link> link = hello.refusal == kWelcome ? wire.join(*this, hello) : nullptr;
  if (link != nullptr && hello.stream >= link->hello.streams) link.reset();
  if (link == nullptr) {
    if (hello.refusal == kWelcome) hello.refusal = kNoSuchLink;
    hello.magic = kMagic;
    send(caller.fd, &hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL);
    return dismiss(caller);
  }
  const int fd = caller.fd;
  loops[0]->remove(fd);
  const auto known = callers_.find(fd);
  loops[0]->retire(known->second);
  callers_.erase(known);
  caller.fd = -1;
  Loop& loop = get_loop(hello.stream);
  loop.post([link, fd, index = hello.stream, &loop] { link->add_stream(index, loop, fd, true); });
}

void Port::keep_house() {
  const uint64_t now_ns = read_clock_ns();
  std::vector<std::shared_ptr<Caller>> late;
  for (const auto& [fd, caller] : callers_) {
    if (now_ns - caller->since_ns > kCallerPatienceNs) late.push_back(caller);
  }
  for (const auto& caller : late) dismiss(*caller);
  wire.check_links(*this);
  check_deadlines(*this);
  check_held(*this);
}

}  // namespace verbena::softverbs::wire
