// Which ranks share a host, and descriptors that go from one to another: what one wrote, the other reads.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "base/parameters.h"
#include "bootstrap/host_domain.h"
#include "bootstrap/support/ranks.h"
#include "tests/base/log_capture.h"
#include "tests/base/scoped_environment.h"

namespace verbena::bootstrap {
namespace {

base::FileDescriptor make_file(const std::string& text) {
  base::FileDescriptor file(memfd_create("verbena-test", MFD_CLOEXEC));
  EXPECT_EQ(write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return file;
}

std::string read_file(const base::FileDescriptor& file) {
  char text[64] = {};
  const ssize_t length = file ? pread(file.get(), text, sizeof(text) - 1, 0) : -1;
  return length < 0 ? "unreadable" : std::string(text, static_cast<size_t>(length));
}

std::string letter(uint32_t from, uint32_t to) {
  return "from " + std::to_string(from) + " to " + std::to_string(to);
}

HostKey pose(const char* name) {
  return take(identify_host(name), "host key");
}

TEST(HostDomain, TwoPosedHostsAreToldApart) {
  run_joined(5, [](Bootstrap& bootstrap) {
    const char* hosts[] = {"b", "a", "b", "a", "a"};
    const auto domain = take(HostDomain::form(bootstrap, pose(hosts[bootstrap.rank()])), "domain");
    const uint32_t local_ranks[] = {0, 0, 1, 1, 2};
    EXPECT_EQ(domain.local_rank(), local_ranks[bootstrap.rank()]);
    if (*hosts[bootstrap.rank()] == 'b') {
      EXPECT_THAT(domain.ranks(), testing::ElementsAre(0, 2));
    } else {
      EXPECT_THAT(domain.ranks(), testing::ElementsAre(1, 3, 4));
    }
  });
}

TEST(HostDomain, ItsNameComesFromTheEnvironment) {
  const UniqueId id = take(make_unique_id(), "id");
  Processes ranks(4, [&](uint32_t rank) {
    base::ScopedEnvironment environment;
    if (rank % 2 == 1) environment.set(rank == 1 ? "VERBENA_HOSTID" : "NCCL_HOSTID", "other");
    if (!base::load_parameters()) return 2;
    auto bootstrap = take(Bootstrap::join(id, rank, 4), "bootstrap");
    const auto domain = take(HostDomain::form(bootstrap), "domain");
    return domain.ranks() == std::vector<uint32_t>{rank % 2, 2 + rank % 2} && bootstrap.barrier() ? 0 : 1;
  });
  EXPECT_THAT(ranks.await(kPatienceMs), testing::Each(0));
}

// Names of a cluster's nodes are long, and differ at their ends.
TEST(HostDomain, ANameMayBeOfAnyLength) {
  for (const size_t letters : {1, 32, 33, 48, 49, 1000}) {
    const std::string before(letters - 1, 'x'), a = before + "a", b = before + "b";
    EXPECT_NE(pose(a.c_str()), pose(b.c_str())) << letters;
    EXPECT_EQ(pose(a.c_str()), pose(a.c_str())) << letters;
    EXPECT_NE(pose(a.c_str()), pose((a + "a").c_str())) << letters;
  }
  EXPECT_EQ(pose(""), pose(""));
}

// Ranks are threads: each passes a different file to every other rank, except to the one that poses as
// another host.
TEST(Descriptors, EachGetsWhatWasMeantForIt) {
  run_joined(6, [](Bootstrap& bootstrap) {
    const uint32_t rank = bootstrap.rank();
    const auto domain = take(HostDomain::form(bootstrap, pose(rank < 4    ? "a"
                                                              : rank == 4 ? "b"
                                                                          : "c")),
                             "domain");
    for (int round = 0; round < 3; ++round) {
      std::vector<base::FileDescriptor> files;
      std::vector<int> own;
      for (const uint32_t to : domain.ranks()) {
        files.push_back(make_file(letter(rank, to)));
        own.push_back(to == 2 ? kNoDescriptor : files.back().get());
      }
      const auto received = take(exchange_descriptors(bootstrap, domain, own), "descriptors");
      ASSERT_EQ(received.size(), domain.ranks().size());
      for (size_t i = 0; i < received.size(); ++i) {
        const uint32_t from = domain.ranks()[i];
        if (from == rank || rank == 2) {
          EXPECT_FALSE(received[i]);
        } else {
          EXPECT_EQ(read_file(received[i]), letter(from, rank));
          EXPECT_NE(fcntl(received[i].get(), F_GETFD) & FD_CLOEXEC, 0);
        }
      }
    }
  });
}

TEST(Descriptors, GoBetweenProcessesAndShareMemory) {
  const UniqueId id = take(make_unique_id(), "id");
  Processes ranks(3, [&](uint32_t rank) {
    auto bootstrap = take(Bootstrap::join(id, rank, 3), "bootstrap");
    const auto domain = take(HostDomain::form(bootstrap), "domain");
    const auto file = make_file("rank " + std::to_string(rank));
    const auto received = take(share_descriptor(bootstrap, domain, file.get()), "descriptors");
    for (uint32_t from = 0; from < 3; ++from) {
      if (from != rank && read_file(received[from]) != "rank " + std::to_string(from)) return 1;
    }
    if (!bootstrap.barrier()) return 4;
    // What a peer writes is seen here: it is the same memory, not a copy.
    const uint32_t next = (rank + 1) % 3;
    const auto mark = static_cast<char>('a' + rank);
    if (pwrite(received[next].get(), &mark, 1, 0) != 1 || !bootstrap.barrier()) return 2;
    return read_file(file)[0] == 'a' + static_cast<char>((rank + 2) % 3) ? 0 : 3;
  });
  EXPECT_THAT(ranks.await(kPatienceMs), testing::Each(0));
}

TEST(Descriptors, OnesFailureIsEverybodysAndTheBootstrapLives) {
  base::LogCapture log;
  run_joined(3, [](Bootstrap& bootstrap) {
    const auto domain = take(HostDomain::form(bootstrap, pose("")), "domain");
    const auto file = make_file("x");
    const int bad = 1'000'000;
    const auto failed = share_descriptor(bootstrap, domain, bootstrap.rank() == 1 ? bad : file.get(), 3'000);
    ASSERT_FALSE(failed);
    EXPECT_NE(failed.error().status, base::Status::kOk);
    EXPECT_TRUE(share_descriptor(bootstrap, domain, file.get()));
  });
  EXPECT_THAT(log.warnings(), testing::Contains(testing::HasSubstr("cannot send file descriptor 1000000")));
}

TEST(Descriptors, ADeathEndsItAtOnce) {
  const UniqueId id = take(make_unique_id(), "id");
  Processes ranks(3, [&](uint32_t rank) {
    base::LogCapture log;
    auto bootstrap = take(Bootstrap::join(id, rank, 3), "bootstrap");
    const auto domain = take(HostDomain::form(bootstrap), "domain");
    if (rank == 2) raise(SIGKILL);
    const auto file = make_file("x");
    return share_descriptor(bootstrap, domain, file.get(), 60'000) ? 1 : 0;
  });
  EXPECT_EQ(ranks.await(kPatienceMs), (std::vector<int>{0, 0, 128 + SIGKILL}));
}

// Without the secret no descriptor is accepted, even if everything else is right.
TEST(Descriptors, AStrangersAreNotTaken) {
  base::LogCapture log;
  auto post = take(UnixPost::open(), "post");
  const auto file = make_file("x");
  PostAddress wrong = post.address();
  wrong.secret[31] ^= 1;
  EXPECT_TRUE(take(UnixPost::send(wrong, 1, file.get()), "sent"));
  EXPECT_TRUE(take(UnixPost::send(wrong, 1, file.get()), "sent"));
  EXPECT_TRUE(take(UnixPost::send(post.address(), 1, file.get()), "sent"));
  UnixPost::Arrival arrival;
  EXPECT_EQ(take(post.receive(arrival), "verdict"), UnixPost::Verdict::kStranger);
  EXPECT_EQ(take(post.receive(arrival), "verdict"), UnixPost::Verdict::kStranger);
  EXPECT_FALSE(arrival.descriptor);
  EXPECT_EQ(take(post.receive(arrival), "verdict"), UnixPost::Verdict::kArrived);
  EXPECT_EQ(read_file(arrival.descriptor), "x");
  EXPECT_EQ(take(post.receive(arrival), "verdict"), UnixPost::Verdict::kNothing);
  EXPECT_EQ(log.warnings().size(), 1U);
}

// What a rank sends is taken up although others of its user called before and say nothing; they are let go.
TEST(Descriptors, SilenceIsNotWaitedFor) {
  base::LogCapture log;
  auto post = take(UnixPost::open(), "post");
  const auto file = make_file("x");
  constexpr char kPrefix[] = "verbena-";
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  char* end = std::copy_n(kPrefix, sizeof(kPrefix) - 1, address.sun_path + 1);
  for (const uint8_t byte : post.address().name) end += std::snprintf(end, 3, "%02x", unsigned{byte});
  std::vector<base::FileDescriptor> silent;
  for (int i = 0; i < 20; ++i) {
    silent.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(silent.back().get(), reinterpret_cast<const sockaddr*>(&address),
                      static_cast<socklen_t>(end - reinterpret_cast<char*>(&address))),
              0);
  }
  EXPECT_TRUE(take(UnixPost::send(post.address(), 1, file.get()), "sent"));
  UnixPost::Arrival arrival;
  EXPECT_EQ(take(post.receive(arrival), "verdict"), UnixPost::Verdict::kArrived);
  EXPECT_EQ(read_file(arrival.descriptor), "x");
  for (const auto& caller : silent) {
    pollfd entry{caller.get(), POLLRDHUP, 0};
    while (::poll(&entry, 1, 10) == 0) static_cast<void>(take(post.receive(arrival), "verdict"));
    EXPECT_NE(entry.revents & (POLLRDHUP | POLLHUP), 0);
  }
}

}  // namespace
}  // namespace verbena::bootstrap
