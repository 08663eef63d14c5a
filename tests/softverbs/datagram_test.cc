// Datagrams in numbers: headers in lines and data in pages, chains, and what a plan of faults does to them.
#include "datagrams.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <algorithm>
#include <set>

#include "injected.h"

namespace verbena::softverbs_test {
namespace {

constexpr uint32_t kReceives = 200;

// Two ends in one process, with as many receives as a test sends.
struct Pair {
  Pair() {
    for (uint32_t i = 0; i < kReceives; ++i) right.post_receive(i, lines, pages);
    data.fill(5);
    for (size_t i = 0; i < headers.size(); ++i) headers.data()[i] = static_cast<uint8_t>(i * 31);
    for (uint32_t path = 0; path < 8; ++path) handles.push_back(left.make_handle(right.address(), path));
  }
  ~Pair() {
    for (ibv_ah* handle : handles) ibv_destroy_ah(handle);
  }
  DatagramEnd::Packet make(uint32_t number, uint32_t path, uint32_t bytes = kDataBytes) {
    return {number, headers.piece(number % 64 * kHeaderBytes, kHeaderBytes),
            data.piece(number % 16 * 16, bytes), handles[path], right.qp->qp_num};
  }
  void post(const std::vector<DatagramEnd::Packet>& packets) {
    ASSERT_EQ(left.post(packets), 0);
    EXPECT_EQ(left_node.wait_completion().status, IBV_WC_SUCCESS);
  }
  void post_all(uint32_t count, uint32_t paths = 8) {
    for (uint32_t i = 0; i < count; ++i) post({make(i, i % paths)});
  }
  // The numbers of so many that arrive, in order, and of those that do a while after.
  std::vector<uint32_t> collect(size_t awaited) {
    constexpr std::chrono::milliseconds kPatience{60'000}, kWhile{20};
    std::vector<uint32_t> numbers;
    auto deadline = std::chrono::steady_clock::now() + (awaited == 0 ? kWhile : kPatience);
    while (std::chrono::steady_clock::now() < deadline) {
      ibv_wc wc{};
      if (ibv_poll_cq(right_node.cq, 1, &wc) != 1) continue;
      if (numbers.size() + 1 == awaited) deadline = std::chrono::steady_clock::now() + kWhile;
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      numbers.push_back(wc.imm_data);
      wrong_bytes += count_wrong(wc);
    }
    return numbers;
  }
  int count_wrong(const ibv_wc& wc) {
    const uint32_t number = wc.imm_data;
    const uint8_t* const line = lines.data() + wc.wr_id * kLineBytes;
    const uint8_t* const page = pages.data() + wc.wr_id * kPageBytes;
    int wrong = 0;
    ibv_grh expected{};
    const uint32_t path = ntohl(reinterpret_cast<const ibv_grh*>(line)->version_tclass_flow) & 0xFF;
    expected.version_tclass_flow = htonl(6U << 28 | path);
    expected.paylen = htons(static_cast<uint16_t>(wc.byte_len - kGrhBytes));
    expected.next_hdr = 0x1b;
    expected.sgid = left.address();
    expected.dgid = right.address();
    for (uint32_t i = 0; i < kGrhBytes; ++i) {
      if (i == offsetof(ibv_grh, hop_limit)) continue;
      wrong += line[i] != reinterpret_cast<uint8_t*>(&expected)[i] ? 1 : 0;
    }
    wrong += path >= 8 ? 1 : 0;
    for (uint32_t i = 0; i < kHeaderBytes; ++i)
      wrong += line[kGrhBytes + i] != headers.data()[number % 64 * kHeaderBytes + i] ? 1 : 0;
    for (uint32_t i = 0; i < wc.byte_len - kGrhBytes - kHeaderBytes; ++i)
      wrong += page[i] != data.data()[number % 16 * 16 + i] ? 1 : 0;
    return wrong;
  }

  Node left_node, right_node;
  Buffer headers{left_node, 64 * kHeaderBytes}, data{left_node, kPageBytes + 256};
  Buffer lines{right_node, kReceives* kLineBytes}, pages{right_node, kReceives* kPageBytes};
  DatagramEnd left{left_node}, right{right_node};
  std::vector<ibv_ah*> handles;
  int wrong_bytes = 0;
};

class DatagramFaultTest : public InjectedTest {};

TEST_P(DatagramFaultTest, AChainArrivesWithHeadersInLinesAndDataInPages) {
  Pair pair;
  std::vector<DatagramEnd::Packet> packets;
  for (uint32_t i = 0; i < 150; ++i) packets.push_back(pair.make(i, i % 8, i % 7 == 0 ? 0 : i * 27));
  pair.post(packets);
  const std::vector<uint32_t> numbers = pair.collect(150);
  if (!uses_wire()) {
    EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  }
  EXPECT_EQ(std::set<uint32_t>(numbers.begin(), numbers.end()).size(), 150U);
  EXPECT_EQ(pair.wrong_bytes, 0);
}

TEST_P(DatagramFaultTest, APathLosesItsDatagramsAlone) {
  use_plan("lose path=3");
  Pair pair;
  pair.post_all(80);
  const auto numbers = pair.collect(70);
  EXPECT_EQ(numbers.size(), 70U);
  for (const uint32_t number : numbers) EXPECT_NE(number % 8, 3U);
  EXPECT_EQ(pair.wrong_bytes, 0);
}

TEST_P(DatagramFaultTest, ChanceLosesTheSameOnesInEveryRun) {
  use_plan("seed 7; lose chance=0.2");
  std::vector<uint32_t> first;
  for (int run = 0; run < 2; ++run) {
    Child child([awaited = first.size()](int socket) {
      Pair pair;
      pair.post_all(150);
      auto numbers = pair.collect(awaited);
      // The first run does not know how many there will be: those that come before a while without any.
      while (awaited == 0) {
        const auto more = pair.collect(0);
        if (more.empty() && !numbers.empty()) break;
        numbers.insert(numbers.end(), more.begin(), more.end());
      }
      std::sort(numbers.begin(), numbers.end());
      numbers.resize(kReceives, UINT32_MAX);
      send_bytes(socket, numbers.data(), numbers.size() * sizeof(uint32_t));
    });
    std::vector<uint32_t> numbers(kReceives);
    receive_bytes(child.socket(), numbers.data(), numbers.size() * sizeof(uint32_t));
    std::erase(numbers, UINT32_MAX);
    EXPECT_GT(numbers.size(), 90U);
    EXPECT_LT(numbers.size(), 145U);
    if (run == 1) {
      EXPECT_EQ(numbers, first);
    }
    first = numbers;
  }
}

TEST_P(DatagramFaultTest, DuplicatesArriveTwice) {
  use_plan("duplicate every=5");
  Pair pair;
  pair.post_all(50);
  const auto numbers = pair.collect(60);
  EXPECT_EQ(numbers.size(), 60U);
  EXPECT_EQ(pair.wrong_bytes, 0);
}

TEST_P(DatagramFaultTest, ReorderedOnesAreOvertakenAndNoneStaysBehind) {
  use_plan("reorder by=16 chance=0.5");
  Pair pair;
  pair.post_all(100);
  // The application has its memory back: what is held was copied.
  pair.data.fill(5);
  const auto numbers = pair.collect(100);
  EXPECT_EQ(numbers.size(), 100U) << "the last ones leave though nothing overtakes them";
  EXPECT_FALSE(std::is_sorted(numbers.begin(), numbers.end()));
  uint32_t farthest = 0;
  for (uint32_t place = 0; place < numbers.size(); ++place)
    if (place > numbers[place]) farthest = std::max(farthest, place - numbers[place]);
  EXPECT_GT(farthest, 0U);  // how far depends on how soon the others leave
  if (!uses_wire()) {
    EXPECT_LE(farthest, 32U);
  }
  EXPECT_EQ(pair.wrong_bytes, 0);
}

TEST_P(DatagramFaultTest, CorruptedBytesAreSoMany) {
  use_plan("corrupt bytes=3 every=10");
  Pair pair;
  pair.post_all(100);
  EXPECT_EQ(pair.collect(100).size(), 100U);
  EXPECT_GT(pair.wrong_bytes, 10);
  EXPECT_LE(pair.wrong_bytes, 30) << "one may be changed twice";
}

TEST_P(DatagramFaultTest, APathIsDownForAWhile) {
  use_plan("down path=2 nth=1 for=300ms");
  Pair pair;
  pair.post({pair.make(2, 2)});
  pair.post({pair.make(3, 3)});
  EXPECT_EQ(pair.collect(1), std::vector<uint32_t>{3});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::vector<uint32_t> numbers;
  for (uint32_t number = 10;
       numbers.empty() && number < kReceives && std::chrono::steady_clock::now() < deadline; ++number) {
    pair.post({pair.make(number, 2)});
    numbers = pair.collect(0);
  }
  EXPECT_FALSE(numbers.empty()) << "it comes back";
  EXPECT_EQ(query_port(pair.left_node), IBV_PORT_ACTIVE) << "a path is no port";
}

TEST_P(DatagramFaultTest, OthersRequestsAreNotStruck) {
  use_plan("lose; duplicate; corrupt bytes=9");
  InjectedLink link;
  link.source.fill(3);
  EXPECT_EQ(link.write_once(1).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(link.target.matches(3, 64));
}

INSTANTIATE_TEST_SUITE_P(Ways, DatagramFaultTest, ::testing::Bool(), name_way);

// A peer that is gone spoils nothing but what goes to it.
TEST(DatagramPeerTest, APeerThatDiesFailsNoQueuePair) {
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 2; ++i) {
    children.push_back(std::make_unique<Child>([](int socket) {
      Node node;
      DatagramEnd end(node, 1024);
      Buffer lines(node, 1024 * kLineBytes), pages(node, 1024 * kPageBytes);
      for (uint32_t r = 0; r < 1024; ++r) end.post_receive(r, lines, pages);
      tell(socket, DatagramAddress{end.address(), end.qp->qp_num});
      hear<bool>(socket);
      tell(socket, node.wait_completions(100).size());
    }));
  }
  Node node;
  DatagramEnd end(node);
  Buffer header(node, kHeaderBytes), data(node, kDataBytes);
  std::vector<DatagramAddress> there;
  std::vector<ibv_ah*> handles;
  for (const auto& child : children) {
    there.push_back(hear<DatagramAddress>(child->socket()));
    handles.push_back(end.make_handle(there.back().gid, 0));
  }
  const auto post = [&](uint32_t count) {
    std::vector<DatagramEnd::Packet> packets;
    for (uint32_t i = 0; i < count; ++i)
      packets.push_back(
          {i, header.piece(0, kHeaderBytes), data.piece(0, kDataBytes), handles[i % 2], there[i % 2].number});
    ASSERT_EQ(end.post(packets), 0);
    ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  };
  post(20);
  children[1]->kill();
  for (int i = 0; i < 20; ++i) post(20);
  tell(children[0]->socket(), true);
  EXPECT_EQ(hear<size_t>(children[0]->socket()), 100U);
  for (ibv_ah* handle : handles) ibv_destroy_ah(handle);
}

// Whether the next instruction of a traced process is a locked one, by which it changes what it shares.
bool is_at_locked_instruction(pid_t traced) {
#ifdef __x86_64__
  user_regs_struct registers{};
  EXPECT_EQ(ptrace(PTRACE_GETREGS, traced, nullptr, &registers), 0);
  constexpr uint8_t kLockPrefix = 0xf0;
  return static_cast<uint8_t>(ptrace(PTRACE_PEEKTEXT, traced, registers.rip, nullptr)) == kLockPrefix;
#else
  static_cast<void>(traced);
  return false;
#endif
}

// A sender that stops now and then, at any instruction, as one does that loses the processor, keeps nobody
// from sending and holds up nobody's datagram, and its receive is there again once it goes on. In its
// first call it stops behind each locked instruction, too.
TEST(DatagramReceiveTest, ASenderMayStopAnywhere) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's code takes minutes, an instruction at a time";
#endif
  constexpr uint32_t kFew = 2, kStride = 120, kFiner = 12;
  Child sender([](int socket) {
    Node node;
    DatagramEnd end(node);
    Buffer header(node, kHeaderBytes);
    const auto to = hear<DatagramAddress>(socket);
    ibv_ah* const handle = end.make_handle(to.gid, 0);
    const bool is_traced = ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0;
    tell(socket, is_traced);
    for (uint32_t sent = 0; is_traced; ++sent) {
      raise(SIGSTOP);  // the parent lets it go on
      ASSERT_EQ(end.post({{sent, header.piece(0, kHeaderBytes), {}, handle, to.number}}), 0);
      raise(SIGSTOP);
      ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    }
    ibv_destroy_ah(handle);
  });
  Node node({.cq_entries = kFew});
  DatagramEnd end(node, kFew);
  Buffer lines(node, kFew * kLineBytes), pages(node, kFew * kPageBytes);
  tell(sender.socket(), DatagramAddress{end.address(), end.qp->qp_num});
  if (!hear<bool>(sender.socket())) GTEST_SKIP() << "this process may not trace another";
  Node other_node;
  DatagramEnd here(other_node);
  Buffer here_header(other_node, kHeaderBytes);
  ibv_ah* const handle = here.make_handle(end.address(), 0);
  const auto post = [&](uint64_t i) { end.post_receive(i, lines, pages); };
  // How many of so many datagrams arrive.
  const auto send = [&](uint32_t count, bool posts_again) {
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(here.post({{i, here_header.piece(0, kHeaderBytes), {}, handle, end.qp->qp_num}}), 0);
      EXPECT_EQ(other_node.wait_completion().status, IBV_WC_SUCCESS);
    }
    uint32_t arrived = 0;
    for (ibv_wc wc{}; ibv_poll_cq(node.cq, 1, &wc) == 1; ++arrived)
      if (posts_again) post(wc.wr_id);
    return arrived;
  };
  const auto wait_for_stop = [&] {
    int status = 0;
    EXPECT_EQ(waitpid(sender.pid(), &status, 0), sender.pid());
    return WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
  };
  for (uint32_t i = 0; i < kFew; ++i) post(i);
  ASSERT_EQ(wait_for_stop(), SIGSTOP);
  for (uint32_t first = 0; first < kStride && !testing::Test::HasFailure(); first += kFiner) {
    int signal = SIGTRAP;
    for (uint32_t step = 0; signal == SIGTRAP; ++step) {
      const bool stops = step % kStride == first || (first == 0 && is_at_locked_instruction(sender.pid()));
      EXPECT_EQ(ptrace(PTRACE_SINGLESTEP, sender.pid(), nullptr, nullptr), 0);
      signal = wait_for_stop();
      if (!stops) continue;
      for (int round = 0; round < 4; ++round) EXPECT_GE(send(kFew, true), 1U) << "step " << step;
    }
    EXPECT_EQ(signal, SIGSTOP);  // its call has returned
    send(0, true);
    EXPECT_EQ(send(2 * kFew, false), kFew) << "after every " << kStride << " instructions from " << first;
    for (uint32_t i = 0; i < kFew; ++i) post(i);
    EXPECT_EQ(ptrace(PTRACE_CONT, sender.pid(), nullptr, nullptr), 0);
    EXPECT_EQ(wait_for_stop(), SIGSTOP);
  }
  EXPECT_EQ(ptrace(PTRACE_DETACH, sender.pid(), nullptr, nullptr), 0);
  sender.kill();
  ibv_destroy_ah(handle);
}

// Several that are stopped again and again, and a queue for as many completions as there are receives.
TEST(DatagramReceiveTest, SendersThatStopLoseNoReceive) {
  constexpr uint32_t kFew = 4, kRounds = 60;
  std::vector<std::unique_ptr<Child>> senders;
  for (int i = 0; i < 3; ++i) {
    senders.push_back(std::make_unique<Child>([](int socket) {
      Node node;
      DatagramEnd end(node);
      Buffer header(node, kHeaderBytes);
      const auto to = hear<DatagramAddress>(socket);
      ibv_ah* const handle = end.make_handle(to.gid, 0);
      for (pollfd order{socket, POLLIN, 0}; poll(&order, 1, 0) == 0;) {
        ASSERT_EQ(end.post({{0, header.piece(0, kHeaderBytes), {}, handle, to.number}}), 0);
        ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
      }
      ibv_destroy_ah(handle);
    }));
  }
  Node node({.cq_entries = kFew});
  DatagramEnd end(node, kFew);
  Buffer lines(node, kFew * kLineBytes), pages(node, kFew * kPageBytes);
  const auto post = [&](uint64_t i) { end.post_receive(i, lines, pages); };
  for (uint32_t i = 0; i < kFew; ++i) post(i);
  for (const auto& sender : senders) tell(sender->socket(), DatagramAddress{end.address(), end.qp->qp_num});
  for (uint32_t round = 0; round < kRounds && !HasFailure(); ++round) {
    // One goes on, whichever that is.
    for (uint32_t i = 0; i < senders.size(); ++i)
      kill(senders[i]->pid(), i == round % senders.size() ? SIGCONT : SIGSTOP);
    for (int i = 0; i < 50 && !HasFailure(); ++i) {
      const ibv_wc wc = node.wait_completion();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      post(wc.wr_id);
    }
  }
  for (const auto& sender : senders) {
    kill(sender->pid(), SIGCONT);
    tell(sender->socket(), true);
  }
  for (const auto& sender : senders) sender->join();
  const auto count = [&] {
    uint32_t arrived = 0;
    for (ibv_wc wc{}; ibv_poll_cq(node.cq, 1, &wc) == 1; ++arrived) post(wc.wr_id);
    return arrived;
  };
  while (count() != 0) {
  }
  Node other_node;
  DatagramEnd here(other_node);
  Buffer header(other_node, kHeaderBytes);
  ibv_ah* const handle = here.make_handle(end.address(), 0);
  for (uint32_t i = 0; i < 2 * kFew; ++i) {
    EXPECT_EQ(here.post({{i, header.piece(0, kHeaderBytes), {}, handle, end.qp->qp_num}}), 0);
    EXPECT_EQ(other_node.wait_completion().status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(count(), kFew);
  ibv_destroy_ah(handle);
}

}  // namespace
}  // namespace verbena::softverbs_test
