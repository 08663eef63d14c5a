// Two processes that speak datagrams, one of which is killed.
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
  ~DatagramPeerTest() override {
    for (const int end : channel_)
      if (end >= 0) ::close(end);
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
    void *context = nullptr, *comm = nullptr, *listening = nullptr, *memory = nullptr;
    abi::Result result = abi::kSuccess;
  };

  // Before this process opens the plugin. The peer connects to what accept() offers, sends a message, and is
  // killed once that is done.
  void start_peer() {
    ASSERT_EQ(pipe(channel_), 0);
    child_ = fork();
    if (child_ == 0) die_as_peer(channel_[0]);
  }
  void accept(End& end) {
    ASSERT_NE(end.context, nullptr);
    char handle[abi::kHandleBytes] = {};
    ASSERT_EQ(end.net.listen(end.context, 0, handle, &end.listening), abi::kSuccess);
    ASSERT_EQ(write(channel_[1], handle, sizeof(handle)), static_cast<ssize_t>(sizeof(handle)));
    abi::NetDeviceHandle* none = nullptr;
    ASSERT_TRUE(poll_until([&] {
      return end.net->accept(end.listening, &end.comm, &none) != abi::kSuccess || end.comm != nullptr;
    }));
    ASSERT_NE(end.comm, nullptr);
  }
  // Tests the request meanwhile: the peer needs our acknowledgements.
  void await_death(End& end, void* request) {
    int status = 0;
    while (waitpid(child_, &status, WNOHANG) == 0) {
      int done = 0, sizes[abi::kMaxTestSizes] = {};
      end.net->test(request, &done, sizes);
      ASSERT_EQ(done, 0);
    }
    EXPECT_TRUE(WIFSIGNALED(status)) << "the peer could not send";
  }
  static void expect_silence(End& end, void* request) {
    EXPECT_FALSE(end.wait(request));
    EXPECT_EQ(end.result, abi::kRemoteError);
    const auto warnings = LogCapture::get().take_warnings();
    ASSERT_FALSE(warnings.empty());
    EXPECT_NE(warnings[0].find("does not answer for 600 ms"), std::string::npos) << warnings[0];
  }
  static void close(End& end) {
    EXPECT_EQ(end.net->close_recv(end.comm), abi::kSuccess);
    EXPECT_EQ(end.net->close_listen(end.listening), abi::kSuccess);
    EXPECT_EQ(end.net.finalize(end.context), abi::kSuccess);
  }

 private:
  [[noreturn]] static void die_as_peer(int from_parent) {
    char handle[abi::kHandleBytes];
    End end;
    abi::NetDeviceHandle* none = nullptr;
    const bool is_right = end.context != nullptr &&
                          read(from_parent, handle, sizeof(handle)) == sizeof(handle) && poll_until([&] {
                            return end.net.connect(end.context, 0, abi::kUndefined, handle, &end.comm,
                                                   &none) != abi::kSuccess ||
                                   end.comm != nullptr;
                          }) &&
                          end.comm != nullptr && end.add_memory() && end.wait(end.begin(true));
    if (is_right) raise(SIGKILL);
    _exit(1);
  }

  int channel_[2] = {-1, -1};
  pid_t child_ = -1;
};

}  // namespace verbena::nccl::testing
