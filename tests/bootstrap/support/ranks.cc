#include "bootstrap/support/ranks.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/clock.h"
#include "base/socket.h"

namespace verbena::bootstrap {

uint16_t reserve_port() {
  const int holder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);  // others take it at no address of this host
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (holder < 0 || setsockopt(holder, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(holder, any, length) != 0 || getsockname(holder, any, &length) != 0)
    throw std::runtime_error("no port is free");
  return ntohs(address.sin_port);
}

void run_as_threads(uint32_t count_ranks, const RankBody& body) {
  std::vector<std::thread> threads;
  threads.reserve(count_ranks);
  for (uint32_t rank = 0; rank < count_ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

void run_joined(uint32_t count_ranks, const JoinedBody& body, const BootstrapOptions& options) {
  const UniqueId id = take(make_unique_id(), "unique id");
  run_as_threads(count_ranks, [&](uint32_t rank) {
    auto bootstrap = Bootstrap::join(id, rank, count_ranks, options);
    ASSERT_TRUE(bootstrap) << "rank " << rank;
    body(*bootstrap);
  });
}

Processes::Processes(uint32_t count, const std::function<int(uint32_t)>& body) {
  for (uint32_t rank = 0; rank < count; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) _exit(body(rank));
    pids_.push_back(pid);
    codes_.push_back(-1);
  }
}

Processes::~Processes() {
  await(0);
}

void Processes::kill(uint32_t rank) {
  ::kill(pids_[rank], SIGKILL);
}

std::vector<int> Processes::await(int64_t max_ms) {
  const auto deadline = base::Deadline::after_ms(max_ms);
  for (size_t i = 0; i < pids_.size(); ++i) {
    while (codes_[i] < 0) {
      int status = 0;
      if (waitpid(pids_[i], &status, WNOHANG) == pids_[i]) {
        codes_[i] = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      } else if (deadline.has_passed()) {
        ::kill(pids_[i], SIGKILL);
        waitpid(pids_[i], &status, 0);
        codes_[i] = 255;
      } else {
        ::poll(nullptr, 0, 2);
      }
    }
  }
  return codes_;
}

}  // namespace verbena::bootstrap
