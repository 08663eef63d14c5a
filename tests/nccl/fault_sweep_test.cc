// The whole plugin over a verbs library whose calls fail, one after the other: nothing is left behind, nobody
// waits for ever, and the log names what failed.
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <utility>

#include "nccl/live_fixture.h"
#include "verbs/faulty/faulty_ibverbs.h"

namespace verbena::nccl::testing {
namespace {

using verbs::faulty::GetHooks;
using verbs::faulty::Hooks;
using verbs::faulty::kGetHooks;

constexpr int kMaxCalls = 400;  // far more than a run makes

class FaultSweepTest : public LiveTest<NewestVersion> {
 protected:
  FaultSweepTest() : hooks_(find_hooks()) {
    environment_.set("VERBENA_IBVERBS_LIB", FAULTY_LIBRARY);
    environment_.set(verbs::faulty::kTargetVariable, SOFTVERBS_LIBRARY);
    environment_.set("SOFTVERBS_DEVICES", "1");
    environment_.set("VERBENA_PEER_GRACE_MS", "20");
    environment_.set("VERBENA_BOUNCE_BYTES", "4m");
  }
  ~FaultSweepTest() override {
    hooks_.failing_call = hooks_.failing_poll = 0;
    hooks_.failing_errno = ENOMEM;
    hooks_.ports_are_down = false;
    hooks_.most_regions = INT32_MAX;
  }

  // From init to finalize. Null: all went well; otherwise what failed, "hang" if nothing did.
  const char* run() {
    const char* failure = start() == 1 ? use_connection() : "init";
    if (std::exchange(is_up_, false)) {
      EXPECT_EQ(net_->finalize(context_), abi::kSuccess);
    }
    context_ = nullptr;
    return failure;
  }
  const char* use_connection() {
    LiveConnection<NewestVersion> connection(*net_, context_);
    const char* failure = nullptr;
    if (!connection.establish(0, HandleShape::kFilled)) {
      failure = connection.result == abi::kSuccess && connection.recv_comm == nullptr ? "hang" : "establish";
    }
    for (const size_t length : {4096, 1 << 20}) {
      if (failure == nullptr) failure = exchange(connection, length);
    }
    connection.close();
    return failure;
  }

  // One message. Who fails closes, as NCCL's ranks do when they abort; then the other end must fail too, or
  // be done.
  const char* exchange(LiveConnection<NewestVersion>& connection, size_t length) {
    void* receive = connection.receive(length);
    if (receive == nullptr) return "irecv";
    void* send = connection.send(length);
    bool has_failed = false;
    const auto test = [&](void*& request, bool is_send) {
      int done = 0, size[abi::kMaxTestSizes] = {};
      if (request != nullptr && (*net_)->test(request, &done, size) == abi::kSuccess) {
        if (done == 0) return;
        if (!is_send && (*net_)->irecv_consumed(connection.recv_comm, 1, request) != abi::kSuccess)
          has_failed = true;
      } else {
        has_failed = true;
        (void)(is_send ? connection.close_send() : connection.close_recv());
      }
      request = nullptr;
    };
    bool is_sent = false, is_received = false;
    const bool is_over = poll_until([&] {
      if (!is_sent) test(send, true);
      is_sent = send == nullptr;
      if (!is_received) test(receive, false);
      is_received = receive == nullptr;
      return is_sent && is_received;
    });
    return !is_over ? "hang" : has_failed ? "exchange" : nullptr;
  }

  // One run; the name of the call that failed in it, null if none did.
  const char* run_with_failure(std::atomic<int>& which, int number) {
    hooks_.calls = hooks_.polls = 0;
    hooks_.failed = nullptr;
    which = number;
    LogCapture::get().take_lines();
    const char* failure = run();
    which = 0;
    const char* failed = hooks_.failed;
    const std::vector<std::string> warnings = LogCapture::get().take_warnings();
    std::string text;
    for (const std::string& line : warnings) text += line + '\n';
    const std::string about = "call " + std::to_string(number) + " (" + (failed ? failed : "none") + "), " +
                              (failure ? failure : "no failure") + ":\n" + text;
    EXPECT_EQ(hooks_.live_objects, 0) << about;
    EXPECT_STRNE(failure, "hang") << about;
    for (const std::string& line : warnings) EXPECT_TRUE(says_where(line)) << line << '\n' << about;
    if (failure != nullptr) {
      EXPECT_FALSE(warnings.empty()) << about;
      EXPECT_NE(text.find(describe(failed != nullptr ? failed : "nothing")), std::string::npos) << about;
      // One for the call, one for what the end fails with, one for what its peer fails with.
      EXPECT_LE(warnings.size(), 3U) << about;
    }
    return failed;
  }

  // A line is about a device or a peer, and names it.
  static bool says_where(const std::string& line) {
    constexpr const char* kPlaces[] = {"device ",       "devices: ",   "rail ",   "send to ",
                                       "receive from ", "connect to ", "accept ", "socket: peer "};
    return std::ranges::any_of(kPlaces,
                               [&](const char* place) { return line.find(place) != std::string::npos; });
  }

  // How the log speaks of a call.
  static const char* describe(const std::string& call) {
    if (call == "get_device_list") return "cannot list";
    if (call == "open_device") return "cannot be opened";
    if (call == "query_device" || call == "query_port") return "cannot be queried";
    if (call == "alloc_pd") return "protection domain";
    if (call == "reg_mr") return "cannot register";
    if (call == "create_cq" || call == "poll_cq") return "completion queue";
    if (call == "create_srq") return "cannot create a shared receive queue";
    if (call == "create_qp") return "cannot create a queue pair";
    if (call == "modify_qp") return "queue pair cannot be moved to";
    if (call == "post_send") return "cannot post";
    if (call == "post_srq_recv") return "cannot post a receive";
    return "a call that may fail without harm";
  }

  static Hooks& find_hooks() {
    void* library = dlopen(FAULTY_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return *reinterpret_cast<GetHooks>(dlsym(library, kGetHooks))();
  }

  Hooks& hooks_;
};

class EveryCallTest : public FaultSweepTest, public ::testing::WithParamInterface<int> {};

TEST_P(EveryCallTest, InTurn) {
  hooks_.failing_errno = GetParam();
  ASSERT_EQ(run(), nullptr);
  ASSERT_EQ(hooks_.live_objects, 0);
  std::map<std::string, int> seen;
  int failing = 1;
  for (; failing < kMaxCalls; ++failing) {
    const char* failed = run_with_failure(hooks_.failing_call, failing);
    if (failed == nullptr) break;
    ++seen[failed];
  }
  EXPECT_LT(failing, kMaxCalls);
  for (const char* call : {"open_device", "query_device", "query_port", "alloc_pd", "reg_mr", "create_cq",
                           "create_srq", "create_qp", "modify_qp", "post_send", "post_srq_recv", "dereg_mr",
                           "destroy_qp", "destroy_cq", "destroy_srq", "dealloc_pd", "close_device"}) {
    EXPECT_GT(seen[call], 0) << call;
  }
}

INSTANTIATE_TEST_SUITE_P(Errno, EveryCallTest, ::testing::Values(ENOMEM, EINVAL, EAGAIN, ETIMEDOUT, EIO),
                         [](const auto& value) { return "E" + std::to_string(value.param); });

// As with a limit on locked memory.
TEST_F(FaultSweepTest, RegistrationsUpToALimit) {
  int limit = 0;
  for (; limit < kMaxCalls; ++limit) {
    hooks_.most_regions = limit;
    LogCapture::get().take_lines();
    const char* failure = run();
    EXPECT_EQ(hooks_.live_objects, 0) << limit;
    if (failure == nullptr) break;
    EXPECT_STRNE(failure, "hang") << limit;
    std::string text;
    for (const std::string& line : LogCapture::get().take_warnings()) text += line + '\n';
    EXPECT_NE(text.find("cannot register memory, probably because the limit of locked memory is too low; "
                        "raise `ulimit -l`"),
              std::string::npos)
        << limit << ": " << text;
  }
  EXPECT_GT(limit, 6) << "NCCL's own registrations at least";
  EXPECT_LT(limit, kMaxCalls);
}

// The devices were found; then the cable is pulled, and put back.
TEST_F(FaultSweepTest, APortThatIsDownWhenAConnectionIsMade) {
  ASSERT_EQ(start(), 1);
  hooks_.ports_are_down = true;
  LogCapture::get().take_lines();
  EXPECT_STREQ(use_connection(), "establish");
  std::string text;
  for (const std::string& line : LogCapture::get().take_warnings()) text += line + '\n';
  EXPECT_NE(text.find("the port is down"), std::string::npos) << text;
  EXPECT_NE(text.find("accept from"), std::string::npos) << text;
  hooks_.ports_are_down = false;
  EXPECT_EQ(use_connection(), nullptr);
}

TEST_F(FaultSweepTest, PollsNowAndThen) {
  for (const int failing : {1, 2, 3, 5, 8, 13, 21, 34, 55, 89}) {
    run_with_failure(hooks_.failing_poll, failing);
  }
}

}  // namespace
}  // namespace verbena::nccl::testing
