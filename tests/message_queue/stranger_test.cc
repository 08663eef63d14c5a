// Callers at a queue's sockets that are no readers of it, and no writer.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "message_queue/support/queues.h"
#include "tests/base/log_capture.h"

namespace verbena::message_queue {
namespace {

// A process that does `body` and lives on until this object goes.
class Stranger {
 public:
  explicit Stranger(const std::function<bool()>& body) {
    int told[2];
    if (pipe(told) != 0) throw std::runtime_error("no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      if (!body()) _exit(1);
      while (write(told[1], "", 1) != 1) continue;
      pause();
      _exit(0);
    }
    close(told[1]);
    char word = 0;
    has_done_ = read(told[0], &word, 1) == 1;
    close(told[0]);
  }
  ~Stranger() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  bool has_done() const { return has_done_; }

 private:
  pid_t pid_ = -1;
  bool has_done_ = false;
};

bool allow_descriptors(rlim_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = count;
  limit.rlim_max = std::max(limit.rlim_max, count);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// They are more than the process has descriptors.
TEST(QueueStrangers, SilentCallersKeepNoReaderOut) {
  constexpr rlim_t kOurs = 128, kCallers = 300;
  Processes writing(1, [&](uint32_t) {
    base::LogCapture log;
    if (!allow_descriptors(kOurs)) return 1;
    auto writer = make_writer(1, 4, 256);
    std::atomic<bool> is_over{false};
    base::Outcome ready = base::Error{};
    std::thread admitting([&] {  // so that it takes callers meanwhile
      while (!ready && !is_over) ready = writer->wait_until_ready(50);
    });
    const Stranger callers([&] {
      if (!allow_descriptors(kCallers + kOurs)) return false;
      for (rlim_t i = 0; i < kCallers; ++i) {
        auto socket = take(base::Socket::try_connect(writer->handle().writer), "socket");
        for (auto done = socket.finish_connect(); done && !*done; done = socket.finish_connect()) usleep(100);
        (void)dup(socket.fd());
      }
      return true;
    });
    const bool has_room = callers.has_done() && Writer::create({.shape = {1, 4, 256}, .bind = {}});
    auto reader = attach(writer->handle(), 0);
    is_over = true;
    admitting.join();
    const bool is_read = ready && send_all(*writer, 3, 256) && read_all(*reader, 3, 256) == 3;
    return has_room && is_read ? 0 : 2;
  });
  EXPECT_THAT(writing.await(kPatienceMs), testing::Each(0));
}

// A handle's nonce goes over the network in the clear; its secret does not.
TEST(QueueStrangers, WhoKnowsTheNonceAloneIsRefused) {
  base::LogCapture log;
  auto writer = make_writer(1, 4, 256);
  std::thread admitting([&] { EXPECT_TRUE(writer->wait_until_ready(kPatienceMs)); });
  for (const uint8_t change : {uint8_t{0}, uint8_t{1}}) {
    Handle overheard = writer->handle();
    overheard.secret[0] ^= change;
    if (change == 0) overheard.secret = {};
    auto stranger = take(Reader::attach(overheard, 0, 0), "reader");
    EXPECT_EQ(stranger->wait_until_ready(kPatienceMs).status(), base::Status::kRemote);
  }
  EXPECT_THAT(log.warnings(), testing::Contains(testing::HasSubstr("connection from")));
  auto reader = attach(writer->handle(), 0);
  admitting.join();
}

// Abstract sockets have names that everybody can read, and each a queue of callers that one may fill.
std::vector<std::string> list_descriptor_sockets() {
  std::vector<std::string> names;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const size_t at = line.find("@verbena-");
    if (at != std::string::npos) names.push_back(line.substr(at + 1));
  }
  return names;
}

TEST(QueueStrangers, AFloodOfOurSocketForDescriptorsKeepsNoWriterOut) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  constexpr int kCalls = 1500;
  base::LogCapture log;
  auto writer = make_writer(1, 4, 256);
  const auto before = list_descriptor_sockets();
  auto reader = take(Reader::attach(writer->handle(), 0, 0), "reader");
  std::thread reading([&] { EXPECT_TRUE(reader->wait_until_ready(kPatienceMs)); });
  const auto find_new = [&]() -> std::string {
    for (const std::string& name : list_descriptor_sockets())
      if (std::ranges::find(before, name) == before.end()) return name;
    return {};
  };
  while (find_new().empty()) usleep(1000);
  const std::string name = find_new();
  const Stranger flood([&] {
    if (!allow_descriptors(kCalls + 64) || setuid(65534) != 0) return false;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    for (int i = 0; i < kCalls; ++i) {
      const int caller = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
      (void)connect(caller, reinterpret_cast<const sockaddr*>(&address), length);
    }
    return true;
  });
  EXPECT_TRUE(flood.has_done());
  EXPECT_TRUE(writer->wait_until_ready(kPatienceMs));
  reading.join();
  EXPECT_TRUE(send_all(*writer, 3, 256));
  EXPECT_EQ(read_all(*reader, 3, 256), 3u);
}

}  // namespace
}  // namespace verbena::message_queue
