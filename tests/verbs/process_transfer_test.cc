// Between two processes, over the devices of VERBENA_IBVERBS_LIB: softverbs, or the kernel's in tests/vm.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/parameters.h"
#include "support/loopback.h"
#include "support/peer_link.h"

namespace verbena::verbs {
namespace {

constexpr int kPatienceMs = 60'000;

class PeerProcess {
 public:
  PeerProcess() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error("socketpair");
    socket_ = ends[0];
    // Only the peer's end goes over exec.
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    std::string program = PEER_PROGRAM, number = std::to_string(ends[1]);
    char* arguments[] = {program.data(), number.data(), nullptr};
    if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  ~PeerProcess() {
    if (pid_ > 0) kill_now();
    close(socket_);
  }

  PeerHello exchange(const PeerHello& own) {
    PeerHello remote{};
    EXPECT_EQ(send(socket_, &own, sizeof(own), MSG_NOSIGNAL), ssize_t{sizeof(own)});
    EXPECT_EQ(recv(socket_, &remote, sizeof(remote), MSG_WAITALL), ssize_t{sizeof(remote)});
    return remote;
  }
  // Its exit status, or -1 if it had to be killed.
  int end() {
    shutdown(socket_, SHUT_WR);
    for (int waited_ms = 0; waited_ms < kPatienceMs; ++waited_ms) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return -1;
  }
  void kill_now() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

class ProcessTransferTest : public testing::TestWithParam<uint32_t> {
 protected:
  ProcessTransferTest() {
    setenv("VERBENA_ACK_TIMEOUT", "14", 1);
    setenv("VERBENA_RETRY_COUNT", "2", 1);
    EXPECT_TRUE(base::load_parameters());
  }

  PeerHello connect(Endpoint& end) {
    const PeerHello own{end.device().address(), end.pair().address(), end.address(), end.remote_key(),
                        static_cast<uint32_t>(end.buffer().size())};
    const PeerHello remote = peer_.exchange(own);
    EXPECT_TRUE(end.pair().connect(remote.port, remote.pair));
    return remote;
  }

  PeerProcess peer_;  // before this process loads softverbs
  std::vector<std::unique_ptr<Device>> devices_ = open_devices();
};

TEST_P(ProcessTransferTest, DataGoesThereAndBack) {
  Endpoint end(*devices_.at(0), GetParam());
  const PeerHello remote = connect(end);
  for (uint32_t round = 0; round < 10; ++round) {
    std::fill(end.buffer().begin(), end.buffer().end(), static_cast<std::byte>(round * 16));
    ASSERT_TRUE(end.post_receive(0, 0, round));
    WorkRequest request = end.make_request(Opcode::kWriteImm, remote.address, remote.remote_key);
    request.imm = round;
    ASSERT_TRUE(end.pair().post(std::span(&request, 1)));
    for (int i = 0; i < 2; ++i) {
      const Completion completion = end.wait(kPatienceMs);
      ASSERT_EQ(completion.error, 0) << describe_completion_error(completion.error);
      if (completion.kind() == CompletionKind::kSend) {
        end.pair().retire();
      } else {
        EXPECT_EQ(completion.imm(), round + 1);
        EXPECT_EQ(completion.length, GetParam());
      }
    }
    EXPECT_EQ(std::count(end.buffer().begin(), end.buffer().end(), static_cast<std::byte>(round * 16 + 1)),
              GetParam());
  }
  EXPECT_EQ(peer_.end(), 0);
}

INSTANTIATE_TEST_SUITE_P(Lengths, ProcessTransferTest, testing::Values(1, 64, 4096, 65537, 4 << 20),
                         testing::PrintToStringParamName());

using KilledPeerTest = ProcessTransferTest;

TEST_F(KilledPeerTest, TheDeathOfThePeerIsACompletionError) {
  Endpoint end(*devices_.at(0), 4096);
  const PeerHello remote = connect(end);
  peer_.kill_now();
  const WorkRequest request = end.make_request(Opcode::kWrite, remote.address, remote.remote_key);
  ASSERT_TRUE(end.pair().post(std::span(&request, 1)));
  const Completion completion = end.wait(kPatienceMs);
  EXPECT_EQ(completion.error, IBV_WC_RETRY_EXC_ERR) << describe_completion_error(completion.error);
}

}  // namespace
}  // namespace verbena::verbs
