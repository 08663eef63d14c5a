// Who has connections of the plugin: this process, or another one that does what it is told. Each call of an
// actor is a command and its reply, so that two actors can be at work at a time.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {

struct Command {
  enum class Act : uint8_t {
    kListen,      // replies with the handle
    kAccept,      // the caller of the listener of this connection
    kConnect,     // to the handle
    kBegin,       // a message; it sends if it has connected
    kWait,        // until that is done
    kTransfer,    // both
    kUnmap,       // its memory goes, though it is registered
    kDeregister,  // its memory
    kClose,
    kCloseListener,
    kFindWarning,  // whether a line has these words
  } act;
  uint32_t connection = 0;
  uint64_t bytes = 0;
  char text[abi::kHandleBytes] = {};
  int limit_s = 60;  // however busy the machine is
};
struct Reply {
  abi::Result result = abi::kSuccess;
  bool is_done = false;  // else it took too long
  double took_s = 0;
  char text[abi::kHandleBytes] = {};

  bool is_right() const { return is_done && result == abi::kSuccess; }
  bool has_failed() const { return is_done && result != abi::kSuccess; }
};

class Actor {
 public:
  virtual ~Actor() = default;
  virtual void begin(const Command& command) = 0;
  virtual Reply finish() = 0;
  Reply run(const Command& command) {
    begin(command);
    return finish();
  }
};

// Of this process.
class LocalActor final : public Actor {
 public:
  LocalActor() : net_(*plugin_.table<NewestVersion>()) {
    if (net_.init(&context_, 1, abi::kUndefined, &LogCapture::write) != abi::kSuccess) context_ = nullptr;
    int devices = 0;
    const bool are_two = is_up() && net_->devices(&devices) == abi::kSuccess && devices == 2;
    abi::ncclNetVDeviceProps_v12_t both{2, {0, 1}};
    if (are_two && net_->make_vdevice(&device_, &both) != abi::kSuccess) context_ = nullptr;
  }
  ~LocalActor() override {
    for (Connection& connection : connections_) close(connection), close_listener(connection);
    if (context_ != nullptr) net_.finalize(context_);
  }
  bool is_up() const { return context_ != nullptr; }
  void begin(const Command& command) override { command_ = command; }
  Reply finish() override { return act(command_); }

 private:
  static constexpr size_t kBytes = 8 << 20;
  struct Connection {
    void *listener = nullptr, *comm = nullptr, *mhandle = nullptr, *request = nullptr;
    bool sends = false, is_unmapped = false;
    std::byte* memory = nullptr;
  };

  // Others need the processor.
  template <typename Done>
  bool poll(const Done& done) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(command_.limit_s);
    for (int calls = 0; std::chrono::steady_clock::now() < deadline; ++calls) {
      if (done()) return true;
      if (calls > 100) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return done();
  }
  Reply act(const Command& command) {
    using Act = Command::Act;
    Reply reply;
    Connection& at = connections_[command.connection];
    const auto begun = std::chrono::steady_clock::now();
    switch (command.act) {
      case Act::kListen:
        reply.result = net_.listen(context_, device_, reply.text, &at.listener);
        reply.is_done = true;
        break;
      case Act::kAccept:
      case Act::kConnect:
        meet(command, at, reply);
        break;
      case Act::kBegin:
        start(command, at, reply);
        break;
      case Act::kTransfer:
        start(command, at, reply);
        if (reply.is_right()) wait(at, reply);
        break;
      case Act::kWait:
        wait(at, reply);
        break;
      case Act::kUnmap:
        reply.is_done = at.is_unmapped = munmap(at.memory, kBytes) == 0;
        break;
      case Act::kDeregister:
        reply.result = net_->dereg_mr(at.comm, std::exchange(at.mhandle, nullptr));
        reply.is_done = true;
        break;
      case Act::kClose:
        reply.result = close(at);
        reply.is_done = true;
        break;
      case Act::kCloseListener:
        reply.result = close_listener(at);
        reply.is_done = true;
        break;
      case Act::kFindWarning:
        for (std::string& line : LogCapture::get().take_warnings()) warnings_.push_back(std::move(line));
        reply.is_done = std::ranges::any_of(
            warnings_, [&](const std::string& line) { return line.find(command.text) != std::string::npos; });
        break;
    }
    reply.took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    return reply;
  }

  void meet(const Command& command, Connection& at, Reply& reply) {
    abi::NetDeviceHandle* none = nullptr;
    at.sends = command.act == Command::Act::kConnect;
    char handle[abi::kHandleBytes];
    std::memcpy(handle, command.text, sizeof(handle));
    reply.is_done = poll([&] {
      reply.result = at.sends ? net_.connect(context_, device_, abi::kUndefined, handle, &at.comm, &none)
                              : net_->accept(at.listener, &at.comm, &none);
      return reply.result != abi::kSuccess || at.comm != nullptr;
    });
    if (!reply.is_right()) return;
    void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at.memory = static_cast<std::byte*>(memory);
    std::memset(at.memory, at.sends ? 0x5A : 0, kBytes);
    reply.result = net_.reg_mr(at.comm, at.memory, kBytes, abi::kPtrHost, &at.mhandle);
  }
  void start(const Command& command, Connection& at, Reply& reply) {
    void* data = at.memory;
    size_t size = command.bytes;
    int tag = 0;
    at.request = nullptr;
    if (!at.sends) std::memset(at.memory, 0, size);
    reply.is_done = poll([&] {
      reply.result = at.sends ? net_.isend(at.comm, data, size, 0, at.mhandle, &at.request)
                              : net_.irecv(at.comm, 1, &data, &size, &tag, &at.mhandle, &at.request);
      return reply.result != abi::kSuccess || at.request != nullptr;
    });
  }
  void wait(Connection& at, Reply& reply) {
    int done = 0, sizes[abi::kMaxTestSizes] = {};
    reply.is_done = poll([&] {
      reply.result = net_->test(at.request, &done, sizes);
      return reply.result != abi::kSuccess || done == 1;
    });
    if (!reply.is_right() || at.sends) return;
    if (std::any_of(at.memory, at.memory + sizes[0], [](std::byte byte) { return byte != std::byte{0x5A}; }))
      reply.result = abi::kInternalError;  // what no transport may do
    if (net_->irecv_consumed(at.comm, 1, at.request) != abi::kSuccess) reply.result = abi::kInternalError;
  }
  abi::Result close(Connection& at) {
    if (at.comm == nullptr) return abi::kSuccess;
    if (at.mhandle != nullptr) net_->dereg_mr(at.comm, std::exchange(at.mhandle, nullptr));
    const abi::Result result = at.sends ? net_->close_send(at.comm) : net_->close_recv(at.comm);
    at.comm = nullptr;
    if (at.memory != nullptr && !at.is_unmapped) munmap(std::exchange(at.memory, nullptr), kBytes);
    return result;
  }
  abi::Result close_listener(Connection& at) {
    return at.listener == nullptr ? abi::kSuccess : net_->close_listen(std::exchange(at.listener, nullptr));
  }

  LoadedPlugin plugin_;
  Caller<NewestVersion> net_;
  void* context_ = nullptr;
  int device_ = 0;  // both rails, where there are two
  std::array<Connection, 32> connections_;
  std::vector<std::string> warnings_;
  Command command_{};
};

// A child, forked before this process has opened the plugin.
class RemoteActor final : public Actor {
 public:
  RemoteActor() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      ::close(ends[0]);
      obey(ends[1]);
    }
    ::close(ends[1]);
    socket_ = ends[0];
  }
  ~RemoteActor() override {
    if (child_ > 0) kill(SIGKILL);
    if (socket_ >= 0) ::close(socket_);
  }
  void begin(const Command& command) override {
    is_under_way_ = send(socket_, &command, sizeof(command), MSG_NOSIGNAL) == sizeof(command);
  }
  Reply finish() override {
    Reply reply;
    const bool has_come = is_under_way_ && recv(socket_, &reply, sizeof(reply), 0) == sizeof(reply);
    return has_come ? reply : Reply{};
  }
  // Returns once it has ended, or is as the signal makes it.
  void kill(int signal) {
    ::kill(child_, signal);
    int status = 0;
    if (signal == SIGKILL) waitpid(std::exchange(child_, -1), &status, 0);
    if (signal == SIGSTOP) waitpid(child_, &status, WUNTRACED);
  }

 private:
  // Ends with its parent.
  [[noreturn]] static void obey(int socket) {
    {
      LocalActor actor;
      Command command{};
      while (actor.is_up() && recv(socket, &command, sizeof(command), 0) == sizeof(command)) {
        const Reply reply = actor.run(command);
        if (send(socket, &reply, sizeof(reply), MSG_NOSIGNAL) != sizeof(reply)) break;
      }
    }
    _exit(0);
  }

  pid_t child_ = -1;
  int socket_ = -1;
  bool is_under_way_ = false;
};

}  // namespace verbena::nccl::testing
