// What the self-test finds of devices that softverbs imitates (SOFTVERBS_PROFILE), and of faults that are
// injected. Each case is a process, as a profile is read once.
#include "verbs/self_test.h"

#include <dlfcn.h>

#include <cstdlib>

#include "faulty/faulty_ibverbs.h"
#include "support/loopback.h"
#include "tests/base/child.h"
#include "tests/base/log_capture.h"
#include "tests/base/scoped_environment.h"

namespace verbena::verbs {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kPatienceNs = 200'000'000;

class SelfTestTest : public testing::Test {
 protected:
  // Runs `body` with the first device of this profile, in a process of its own.
  template <typename Body>
  void with_device(const char* profile, const char* faults, Body&& body) {
    const int status = base::run_child([&] {
      setenv("SOFTVERBS_PROFILE", profile, 1);
      setenv("SOFTVERBS_FAULTS", faults, 1);
      const auto devices = open_devices();
      body(*devices[0]);
      if (HasFailure()) std::fprintf(stderr, "profile '%s', faults '%s'\n", profile, faults);
      return HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(status, 0);
  }
  // The first device of softverbs behind a library whose calls fail on request.
  template <typename Body>
  void with_faulty_device(Body&& body) {
    const base::ScopedEnvironment environment(
        {{"VERBENA_IBVERBS_LIB", FAULTY_LIBRARY}, {faulty::kTargetVariable, SOFTVERBS_LIBRARY}});
    with_device("vendor=1", "", [&body](Device& device) {
      void* library = dlopen(FAULTY_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
      body(device, *reinterpret_cast<faulty::GetHooks>(dlsym(library, faulty::kGetHooks))());
    });
  }
  static SelfTestResult try_all(Device& device) {
    return test_device(device, {.patience_ns = kPatienceNs, .all_forms = true});
  }
  static Abilities judge_all(Device& device) {
    return judge(try_all(device), {.empty_receives = true, .fetch_add = device.offers_atomics()});
  }
  // Of all forms of host memory those that do not work.
  static std::string list_others(const SelfTestResult& result) {
    std::string text;
    for (size_t i = 0; i < static_cast<size_t>(Form::kGpuRegister); ++i)
      if (!result.forms[i].works())
        text += std::string(kFormNames[i]) + " " + describe(result.forms[i]) + "\n";
    return text;
  }
};

TEST_F(SelfTestTest, FindsNothingWithSoftverbs) {
  with_device("", "", [](Device& device) {
    EXPECT_EQ(list_others(try_all(device)), "");
    EXPECT_EQ(judge_all(device).advice, "");
    EXPECT_TRUE(judge_all(device).fetch_add);
  });
}

// What each profile forbids is found by trying: nothing asks for a vendor.
TEST_F(SelfTestTest, FindsWhatAProfileForbids) {
  const std::string no_shared =
      "shared_send not offered\nshared_imm not offered\nshared_empty not offered\nshared_bare not offered\n"
      "short_datagram not offered\ndatagram not offered\n";
  const struct {
    const char* profile;
    std::string others;
  } cases[] = {
      {"mlx5", ""},
      {"mlx5-ar", ""},
      {"cx8", ""},
      {"bnxt", "fetch_add not offered\nshared_bare refused (errno 22)\n"},
      {"irdma", "fetch_add not offered\n" + no_shared},
      {"ionic", no_shared},
      {"minimal",
       "inline_write not offered\nempty_write refused (errno 22)\nfetch_add not offered\nshared_send refused "
       "(errno "
       "95)\nshared_imm refused (errno 95)\nshared_empty refused (errno 95)\nshared_bare refused (errno 95)\n"
       "own_bare refused (errno 22)\nshort_datagram refused (errno 95)\ndatagram refused (errno 95)\n"},
  };
  for (const auto& [profile, others] : cases) {
    with_device(profile, "", [&others](Device& device) {
      const SelfTestResult result = try_all(device);
      EXPECT_EQ(list_others(result), others);
      EXPECT_EQ(judge(result, {}).unusable, "");
    });
  }
}

TEST_F(SelfTestTest, ChoosesAnotherWay) {
  with_device("vendor=1 makes_srq=0", "", [](Device& device) {
    const Abilities found = judge_all(device);
    EXPECT_FALSE(found.shared_receives);
    EXPECT_THAT(found.advice, HasSubstr("each queue pair gets its own receive queue"));
  });
  with_device("vendor=1 empty_receive=own", "",
              [](Device& device) { EXPECT_FALSE(judge_all(device).empty_receives); });
  with_device("vendor=1 inline_write=broken", "", [](Device& device) {
    const Abilities found = judge_all(device);
    EXPECT_FALSE(found.inline_writes);
    EXPECT_THAT(found.advice, "an inline write wrong: grants are sent from registered memory");
  });
  with_device("vendor=1 zero_write=0", "",
              [](Device& device) { EXPECT_FALSE(judge_all(device).empty_writes); });
  with_device("vendor=1", "fail opcode=ATOMIC_FETCH_AND_ADD status=REM_OP nth=1", [](Device& device) {
    const Abilities found = judge_all(device);
    EXPECT_FALSE(found.fetch_add);
    EXPECT_EQ(found.unusable, "");
  });
}

TEST_F(SelfTestTest, TriesDatagramsOnlyWhereTheyAreUsed) {
  with_device("vendor=1 mtu=1024", "", [](Device& device) {
    const SelfTestResult result = test_device(device, {.patience_ns = kPatienceNs});
    EXPECT_EQ(result.of(Form::kShortDatagram).verdict, Verdict::kNotTried);
    EXPECT_EQ(result.of(Form::kDatagram).verdict, Verdict::kNotTried);
    const SelfTestResult tried = test_device(device, {.patience_ns = kPatienceNs, .datagrams = true});
    EXPECT_TRUE(tried.of(Form::kShortDatagram).works());
    EXPECT_TRUE(tried.of(Form::kDatagram).works());
  });
}

TEST_F(SelfTestTest, ADatagramThatFailsExcludesNoConnection) {
  with_device("vendor=1", "corrupt nth=2 bytes=64", [](Device& device) {
    const Abilities found = judge_all(device);
    EXPECT_EQ(found.unusable, "");
    EXPECT_EQ(found.advice, "a datagram wrong: VERBENA_TRANSPORT=connected is needed");
  });
  with_device("vendor=1", "lose every=1", [](Device& device) {
    const Abilities found = judge_all(device);
    EXPECT_EQ(found.unusable, "");
    EXPECT_THAT(found.advice, HasSubstr("a datagram has no completion"));
  });
}

// Neither way of receiving works: a connection needs one.
TEST_F(SelfTestTest, LeavesOutADeviceWithoutAnotherWay) {
  with_device("vendor=1", "fail opcode=RDMA_WRITE_WITH_IMM status=REM_OP every=1", [](Device& device) {
    EXPECT_THAT(judge_all(device).unusable, HasSubstr("a receive with an immediate failed (status"));
  });
}

// A port that goes down meanwhile: the device is used, as silence proves nothing.
TEST_F(SelfTestTest, SilenceExcludesNoDevice) {
  for (const char* const faults :
       {"fail nth=3 status=RETRY_EXC", "fail opcode=RDMA_WRITE_WITH_IMM status=RETRY_EXC every=1",
        "fail opcode=RDMA_WRITE every=2 status=RETRY_EXC", "fail every=1 status=RETRY_EXC"}) {
    with_device("vendor=1", faults, [](Device& device) { EXPECT_EQ(judge_all(device).unusable, ""); });
  }
}

// A queue pair's own address may not answer, as an IPv6 address that the host routes through the switch.
TEST_F(SelfTestTest, AnOwnAddressThatDoesNotAnswerExcludesNoDevice) {
  with_faulty_device([](Device& device, faulty::Hooks& hooks) {
    hooks.reaches_no_self = true;
    const SelfTestResult result = try_all(device);
    EXPECT_EQ(describe(result.of(Form::kWrite)), "has no completion (errno 110)");
    EXPECT_EQ(result.of(Form::kInline).verdict, Verdict::kNotTried) << "each would wait for the address";
    const Abilities found = judge(result, {.fetch_add = true});
    EXPECT_EQ(found.unusable, "");
    EXPECT_TRUE(found.shared_receives && found.inline_writes && found.fetch_add);
    EXPECT_FALSE(device.abilities().reaches_itself);
    const int before = hooks.self_connects;
    EXPECT_FALSE(device.tells_carried_out());
    EXPECT_EQ(hooks.self_connects, before) << "it waits for the address again";
  });
}

// Memory that is short for a moment says nothing about the device.
TEST_F(SelfTestTest, NoCallThatLacksMemoryOnceExcludesADevice) {
  with_faulty_device([](Device& device, faulty::Hooks& hooks) {
    hooks.calls = 0;
    EXPECT_EQ(list_others(try_all(device)), "");
    const int calls = hooks.calls;
    EXPECT_GT(calls, 10);
    for (int call = 1; call <= calls; ++call) {
      hooks.calls = 0;
      hooks.failing_call = call;
      EXPECT_EQ(judge_all(device).unusable, "") << hooks.failed << ", call " << call;
    }
  });
}

// A completion that never comes costs the patience of one form, and two of them end the test.
TEST_F(SelfTestTest, WaitsForNoCompletionForEver) {
  with_device("vendor=1", "drop opcode=RDMA_READ nth=1", [](Device& device) {
    const SelfTestResult result = try_all(device);
    EXPECT_EQ(list_others(result), "read has no completion\n");
    EXPECT_THAT(judge(result, {}).advice, HasSubstr("a read has no completion"));
  });
  with_device("vendor=1", "drop every=1", [](Device& device) {
    const SelfTestResult result = try_all(device);
    EXPECT_EQ(result.of(Form::kWrite).verdict, Verdict::kNoAnswer);
    EXPECT_EQ(result.of(Form::kRead).verdict, Verdict::kNotTried);
    const Abilities found = judge(result, {.fetch_add = true});
    EXPECT_EQ(found.unusable, "") << "it may reach others";
    EXPECT_TRUE(found.shared_receives && found.fetch_add);
  });
  with_device("vendor=1", "drop opcode=RDMA_READ,ATOMIC_FETCH_AND_ADD every=1", [](Device& device) {
    const SelfTestResult result = try_all(device);
    EXPECT_EQ(result.of(Form::kFetchAdd).verdict, Verdict::kNoAnswer);
    EXPECT_EQ(result.of(Form::kSharedSend).verdict, Verdict::kNotTried);
  });
}

// Before the first connection, in one line, once.
TEST_F(SelfTestTest, RunsBeforeTheFirstConnection) {
  with_device("vendor=1 inline_write=broken makes_srq=0", "", [](Device& device) {
    const base::LogCapture log;
    EXPECT_NE(device.refresh_address().port.link_layer, 0);
    EXPECT_THAT(log.warnings(), ElementsAre(AllOf(HasSubstr("self-test: a shared receive queue refused"),
                                                  HasSubstr("an inline write wrong"))));
    const base::LogCapture later;
    device.refresh_address();
    EXPECT_THAT(later.warnings(), IsEmpty());
    EXPECT_FALSE(device.abilities().inline_writes);
  });
  with_device("vendor=1", "fail opcode=RDMA_WRITE_WITH_IMM status=REM_OP every=1", [](Device& device) {
    const base::LogCapture log;
    EXPECT_EQ(device.refresh_address().port.link_layer, 0) << "left out";
    EXPECT_THAT(log.warnings(), ElementsAre(HasSubstr("not used for new connections: self-test: a receive")));
  });
  const base::ScopedEnvironment environment({{"VERBENA_SELF_TEST", "0"}});
  with_device("vendor=1", "fail opcode=RDMA_WRITE_WITH_IMM status=REM_OP every=1",
              [](Device& device) { EXPECT_NE(device.refresh_address().port.link_layer, 0) << "believed"; });
}

// softverbs' own plans of faults count every request.
TEST_F(SelfTestTest, PostsNothingOnSoftverbs) {
  with_device("", "fail nth=1 status=REM_OP", [](Device& device) {
    device.abilities();
    EXPECT_EQ(try_all(device).of(Form::kWrite).verdict, Verdict::kFailed) << "the first request";
  });
}

}  // namespace
}  // namespace verbena::verbs
