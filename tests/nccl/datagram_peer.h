// Two processes that speak datagrams, one of which dies.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {

class DatagramEnvironment {
 public:
  static void set(ScopedEnvironment& environment) {
    environment.set("VERBENA_TRANSPORT", "datagram");
    environment.set("VERBENA_BOUNCE_BYTES", "16m");
    environment.set("VERBENA_PEER_GRACE_MS", "200");
  }
};

class DatagramPeerTest : public LiveEnvironment {
 protected:
  using Net = Caller<NewestVersion>;
  static constexpr size_t kBytes = 100'000;

  DatagramPeerTest() {
    DatagramEnvironment::set(environment_);
    environment_.set("VERBENA_FAILOVER_TIMEOUT_MS", "600");
  }

  // An end of a process that opens the plugin itself.
  struct End {
    End() : net(*plugin.table<NewestVersion>()), buffer(kBytes) {
      if (net.init(&context, 1, abi::kUndefined, &LogCapture::write) != abi::kSuccess) context = nullptr;
    }
    bool add_memory() { return add_memory(buffer.bytes.data(), abi::kPtrHost); }
    bool add_memory(void* data, int type) {
      memory = data;
      return net.reg_mr(comm, data, kBytes, type, &buffer.mhandle) == abi::kSuccess;
    }
    void* begin(bool sends) {
      void *request = nullptr, *data = memory;
      size_t size = kBytes;
      int tag = 0;
      poll_until([&] {
        result = sends ? net.isend(comm, data, kBytes, 0, buffer.mhandle, &request)
                       : net.irecv(comm, 1, &data, &size, &tag, &buffer.mhandle, &request);
        return result != abi::kSuccess || request != nullptr;
      });
      return request;
    }
    bool wait(void* request) {
      int done = 0, sizes[abi::kMaxTestSizes] = {};
      return poll_until([&] {
               result = net->test(request, &done, sizes);
               return result != abi::kSuccess || done == 1;
             }) &&
             done == 1;
    }
    LoadedPlugin plugin;
    Net net;
    LiveBuffer buffer;
    void *context = nullptr, *comm = nullptr, *memory = nullptr;
    abi::Result result = abi::kSuccess;
  };

  // In the child: takes the handle, and sends a message.
  static bool connect(End& end, int from_parent) {
    char handle[abi::kHandleBytes];
    abi::NetDeviceHandle* none = nullptr;
    return end.context != nullptr && read(from_parent, handle, sizeof(handle)) == sizeof(handle) &&
           poll_until([&] {
             return end.net.connect(end.context, 0, abi::kUndefined, handle, &end.comm, &none) !=
                        abi::kSuccess ||
                    end.comm != nullptr;
           }) &&
           end.comm != nullptr;
  }
  static bool send_one(End& end, int from_parent) {
    return connect(end, from_parent) && end.add_memory() && end.wait(end.begin(true));
  }
  [[noreturn]] static void die_as_peer(int from_parent) {
    End end;
    if (send_one(end, from_parent)) raise(SIGKILL);
    _exit(1);
  }

  // As if of another host, if it is named: then nothing is seen of each other but what the network brings.
  pid_t start_peer_that_dies(const char* host = nullptr) {
    const pid_t child = fork();
    if (child != 0) return child;
    if (host != nullptr) setenv("VERBENA_HOSTID", host, 1);
    die_as_peer(channel_[0]);
  }

  // In the parent; the handle goes through the channel.
  void SetUp() override { ASSERT_EQ(pipe(channel_), 0); }
  void TearDown() override {
    close(channel_[0]);
    close(channel_[1]);
  }
  void listen(End& end) {
    ASSERT_NE(end.context, nullptr);
    ASSERT_EQ(end.net.listen(end.context, 0, handle_, &listening_), abi::kSuccess);
    ASSERT_EQ(write(channel_[1], handle_, sizeof(handle_)), static_cast<ssize_t>(sizeof(handle_)));
  }
  void accept(End& end) {
    abi::NetDeviceHandle* none = nullptr;
    ASSERT_TRUE(poll_until([&] {
      return end.net->accept(listening_, &end.comm, &none) != abi::kSuccess || end.comm != nullptr;
    }));
    ASSERT_NE(end.comm, nullptr);
  }
  static void receive_one(End& end) {
    ASSERT_TRUE(end.add_memory());
    EXPECT_TRUE(end.wait(end.begin(false)));
  }
  // Meets the child, receives what it sends, and begins to receive more.
  void* receive_and_ask_for_more(End& end) {
    listen(end);
    accept(end);
    receive_one(end);
    return end.begin(false);
  }
  // Works for others in `request`'s test until the child has changed its state.
  static void await_child(End& end, void* request, pid_t child, int options, int& status) {
    ASSERT_TRUE(poll_until([&] {
      int done = 0, sizes[abi::kMaxTestSizes] = {};
      if (request != nullptr) end.net->test(request, &done, sizes);  // the peer needs our acknowledgements
      return waitpid(child, &status, options | WNOHANG) != 0;
    }));
  }
  static void await_kill(End& end, void* request, pid_t child) {
    int status = 0;
    await_child(end, request, child, 0, status);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the peer could not send";
  }
  static void expect_failure(End& end, void* request, const char* words) {
    EXPECT_FALSE(end.wait(request));
    EXPECT_EQ(end.result, abi::kRemoteError);
    const auto warnings = LogCapture::get().take_warnings();
    ASSERT_FALSE(warnings.empty());
    EXPECT_NE(warnings[0].find(words), std::string::npos) << warnings[0];
  }
  void finish(End& end) {
    EXPECT_EQ(end.net->close_recv(end.comm), abi::kSuccess);
    EXPECT_EQ(end.net->close_listen(listening_), abi::kSuccess);
    EXPECT_EQ(end.net.finalize(end.context), abi::kSuccess);
  }

  int channel_[2] = {-1, -1};
  char handle_[abi::kHandleBytes] = {};
  void* listening_ = nullptr;
};

}  // namespace verbena::nccl::testing
