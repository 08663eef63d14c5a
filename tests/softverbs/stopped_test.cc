// Senders that are stopped or killed while they write the completion of a datagram.
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "datagrams.h"
#include "softverbs/shared/ring_word.h"
#include "softverbs/shared/shared_layout.h"

// Called once, when the library looks up whether a process is alive.
static std::function<void()> on_look_up;

// Stands in front of the C library's.
extern "C" __attribute__((visibility("default"))) int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  if (on_look_up && std::string_view(path).ends_with("/stat")) std::exchange(on_look_up, nullptr)();
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

namespace verbena::softverbs_test {
namespace {

// A receiver whose completion queue has an entry for each receive, and two senders. Each sender has one
// datagram, and is traced, so that a test can stop it while it writes the datagram's completion.
struct StoppedSenders {
  static constexpr uint32_t kReceives = 4, kNothing = UINT32_MAX;

  StoppedSenders() {
    const DatagramAddress to{end.address(), end.qp->qp_num};
    for (const auto& sender : senders) tell(sender->socket(), to);
    for (const auto& sender : senders) is_traced = hear<bool>(sender->socket()) && is_traced;
    if (!is_traced) return;
    using namespace softverbs;
    uint8_t* const tables = find_tables(get_qp_slot(end.qp->qp_num));
    const auto& qp = reinterpret_cast<SharedQp*>(tables + kQpTable)[get_qp_index(end.qp->qp_num)];
    const auto& cq = reinterpret_cast<SharedCq*>(tables + kCqTable)[qp.receive_cq.get()];
    slots = reinterpret_cast<CompletionSlot*>(tables + cq.ring.get());
    for (uint32_t i = 0; i < kReceives; ++i) post(i);
    for (const auto& sender : senders) {
      EXPECT_EQ(waitpid(sender->pid(), nullptr, 0), sender->pid());
      const auto held = count_held();
      while (count_held() == held && go_on(*sender, PTRACE_SINGLESTEP)) {
      }
    }
  }
  ~StoppedSenders() { ibv_destroy_ah(handle); }

  static std::unique_ptr<Child> make_sender(uint32_t number) {
    return std::make_unique<Child>([number](int socket) {
      Node node;
      DatagramEnd end(node);
      Buffer header(node, kHeaderBytes);
      const auto to = hear<DatagramAddress>(socket);
      ibv_ah* const handle = end.make_handle(to.gid, 0);
      const bool is_traced = ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0;
      tell(socket, is_traced);
      if (is_traced) {
        raise(SIGSTOP);
        EXPECT_EQ(end.post({{number, header.piece(0, kHeaderBytes), {}, handle, to.number}}), 0);
        raise(SIGSTOP);
      }
      ibv_destroy_ah(handle);
    });
  }
  // Waits until the sender stops. False if it has ended.
  static bool go_on(const Child& sender, __ptrace_request how) {
    int status = 0;
    EXPECT_EQ(ptrace(how, sender.pid(), nullptr, nullptr), 0);
    EXPECT_EQ(waitpid(sender.pid(), &status, 0), sender.pid());
    return WIFSTOPPED(status);
  }
  // The completions that a sender has begun.
  uint32_t count_held() const {
    return static_cast<uint32_t>(std::count_if(slots, slots + kReceives, [](const auto& slot) {
      return softverbs::get_slot_state(slot.word.load()) == softverbs::SlotState::kHeldApart;
    }));
  }
  void post(uint64_t i) { end.post_receive(i, lines, pages); }
  void send(uint32_t number) {
    EXPECT_EQ(here.post({{number, header.piece(0, kHeaderBytes), {}, handle, end.qp->qp_num}}), 0);
    EXPECT_EQ(here_node.wait_completion().status, IBV_WC_SUCCESS);
  }
  // The number of the next datagram, whose receive is posted again; kNothing if none has arrived.
  uint32_t take() {
    ibv_wc wc{};
    if (ibv_poll_cq(node.cq, 1, &wc) != 1) return kNothing;
    post(wc.wr_id);
    return wc.imm_data;
  }

  std::unique_ptr<Child> senders[2] = {make_sender(0), make_sender(1)};  // before this process has a device
  Node node{{.cq_entries = kReceives}}, here_node;
  DatagramEnd end{node, kReceives}, here{here_node};
  Buffer lines{node, kReceives* kLineBytes}, pages{node, kReceives* kPageBytes},
      header{here_node, kHeaderBytes};
  ibv_ah* const handle = here.make_handle(end.address(), 0);
  bool is_traced = true;
  const softverbs::CompletionSlot* slots = nullptr;
};
constexpr const char* kNotTraced = "this process may not trace another";
constexpr int kManyPolls = 100'000;  // a receiver that finds nothing looks for dead senders

// The senders continue in another order, and other datagrams arrive in between: each has its completion.
TEST(StoppedSenderTest, CompletionsOfStoppedSendersLeaveRoomForTheOthers) {
  StoppedSenders stopped;
  if (!stopped.is_traced) GTEST_SKIP() << kNotTraced;
  EXPECT_EQ(stopped.take(), StoppedSenders::kNothing);  // steps over both
  for (const uint32_t number : {2, 3}) stopped.send(number);
  for (const uint32_t number : {1, 0}) {
    EXPECT_TRUE(StoppedSenders::go_on(*stopped.senders[number], PTRACE_CONT));
    EXPECT_EQ(stopped.take(), number);
    stopped.send(4 + number);
  }
  EXPECT_EQ(stopped.take(), 2U);
  stopped.send(6);
  for (const uint32_t number : {3, 5, 4, 6}) EXPECT_EQ(stopped.take(), number);
  for (const auto& sender : stopped.senders)
    EXPECT_EQ(ptrace(PTRACE_DETACH, sender->pid(), nullptr, nullptr), 0);
}

// Senders that are killed after the receiver has stepped over their completions take no entry of its queue.
TEST(StoppedSenderTest, CompletionsOfKilledSendersLeaveRoomForTheOthers) {
  StoppedSenders stopped;
  if (!stopped.is_traced) GTEST_SKIP() << kNotTraced;
  EXPECT_EQ(stopped.take(), StoppedSenders::kNothing);  // steps over both
  for (const auto& sender : stopped.senders) sender->kill();
  for (int i = 0; stopped.count_held() != 0 && i < kManyPolls; ++i)
    EXPECT_EQ(stopped.take(), StoppedSenders::kNothing);
  for (const uint64_t taken : {0, 1}) stopped.post(taken);  // by the killed senders, in the order of posting
  for (const uint32_t number : {2, 3, 4, 5}) stopped.send(number);
  for (const uint32_t number : {2, 3, 4, 5}) EXPECT_EQ(stopped.take(), number);
}

// The sender writes its completion and ends while the receiver looks up whether the sender is alive.
TEST(StoppedSenderTest, TheCompletionOfASenderThatHasEndedIsTaken) {
  StoppedSenders stopped;
  if (!stopped.is_traced) GTEST_SKIP() << kNotTraced;
  const auto finish = [](Child& sender) {
    EXPECT_TRUE(StoppedSenders::go_on(sender, PTRACE_CONT));
    sender.kill();
  };
  Child &first = *stopped.senders[0], &second = *stopped.senders[1];
  on_look_up = [&] { finish(first); };
  EXPECT_EQ(stopped.take(), 0U);
  EXPECT_EQ(stopped.take(), StoppedSenders::kNothing);  // steps over the other
  on_look_up = [&] { finish(second); };
  uint32_t number = StoppedSenders::kNothing;
  for (int i = 0; number == StoppedSenders::kNothing && i < kManyPolls; ++i) number = stopped.take();
  EXPECT_EQ(number, 1U);
}

}  // namespace
}  // namespace verbena::softverbs_test
