#include <cerrno>

#include "injected.h"

// Plans and control files that cannot be understood: no device, and one line that says why.
namespace verbena::softverbs_test {
namespace {

// The library's error about its environment, in a separate process; empty if it offers devices.
std::string try_devices() {
  Child child([](int socket) {
    ::testing::internal::CaptureStderr();
    int count = -1;
    errno = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    const int error = errno;
    if (devices != nullptr) {
      EXPECT_GT(count, 0);
      ibv_context* context = ibv_open_device(devices[0]);
      EXPECT_NE(context, nullptr);
      EXPECT_EQ(ibv_close_device(context), 0);
      ibv_free_device_list(devices);
    } else {
      EXPECT_EQ(error, EINVAL);
      EXPECT_EQ(count, 0);
      EXPECT_EQ(ibv_get_device_list(nullptr), nullptr) << "and again";
    }
    std::string said = ::testing::internal::GetCapturedStderr();
    said.resize(512, '\0');
    send_bytes(socket, said.data(), said.size());
  });
  std::string said(512, '\0');
  receive_bytes(child.socket(), said.data(), said.size());
  return said.substr(0, said.find('\0'));
}

std::string try_plan(const std::string& plan) {
  setenv("SOFTVERBS_FAULTS", plan.c_str(), 1);
  return try_devices();
}

void expect_refused(const std::string& plan, const std::string& cause) {
  EXPECT_EQ(try_plan(plan),
            "softverbs: SOFTVERBS_FAULTS: " + cause + "; because of this error, softverbs offers no device\n")
      << plan;
}

TEST(FaultPlanTest, GoodPlans) {
  for (const char* plan :
       {"", "# nothing\n\n", "seed 9; log",
        "fail status=IBV_WC_RETRY_EXC_ERR opcode=IBV_WR_SEND,RDMA_READ rail=* nth=1", "delay by=1us..1.5ms",
        "limit rate=1.5GB/s rail=7", "down rail=0 at=100s for=1s up=2s flaps=3",
        "error every=10 peer=error after=5 times=2 per=qp qp=4", "drop chance=1",
        "event type=QP_FATAL chance=0.5", "down nth=1\tfor=1ms # comment; with = signs",
        "lose path=255; lose chance=0.01 per=qp; duplicate every=9 rail=1; reorder by=64; corrupt bytes=4 "
        "nth=3",
        "down path=3 at=1ms for=5ms up=1ms flaps=2"}) {
    EXPECT_EQ(try_plan(plan), "") << plan;
  }
}

TEST(FaultPlanTest, MalformedPlansAreRefusedWithLineAndCause) {
  expect_refused(
      "explode nth=1",
      "line 1: 'explode': unknown fault; the faults are fail, error, drop, delay, limit, down, "
      "event, lose, duplicate, reorder and corrupt (to name a file with a plan, begin the path with / or .)");
  expect_refused("seed 1\n\nfail status=NONSENSE nth=1",
                 "line 3: 'fail': 'status=NONSENSE' is not a valid value");
  expect_refused("fail status=SUCCESS nth=1", "line 1: 'fail': 'status=SUCCESS' is not a valid value");
  expect_refused("fail nth=1", "line 1: 'fail': status= is missing");
  expect_refused(
      "log; fail status=GENERAL",
      "line 1: 'fail': the rule does not say when the fault occurs; give nth=, every=, chance= or at=");
  expect_refused("drop nth=1 every=2",
                 "line 1: 'drop': 'every=2' conflicts with an earlier nth=, every=, chance= or at=");
  expect_refused("drop nth=1 nth=2", "line 1: 'drop': 'nth' is given twice");
  expect_refused("drop often", "line 1: 'drop': 'often' is not of the form KEY=VALUE");
  expect_refused("drop status=GENERAL nth=1", "line 1: 'drop': 'status' is not a key of this fault");
  for (const char* word :
       {"nth=0", "nth=-1", "nth=", "nth=1x", "nth=99999999999999999999", "chance=0", "chance=1.1",
        "chance=nan", "rail=8", "rail=", "opcode=", "opcode=SEND,", "opcode=BIND_MW", "per=me"})
    expect_refused(std::string("drop ") + word,
                   std::string("line 1: 'drop': '") + word + "' is not a valid value");
  for (const char* word : {"by=1", "by=ms", "by=1 ms", "by=2ms..1ms", "by=1ms..", "by=1e30s", "by=-1ms"}) {
    const std::string text = word;
    const std::string first = text.substr(0, text.find(' '));
    expect_refused("delay " + text, "line 1: 'delay': '" + first + "' is not a valid value");
  }
  expect_refused("limit rate=0MB/s", "line 1: 'limit': 'rate=0MB/s' is not a valid value");
  expect_refused("limit", "line 1: 'limit': rate= is missing");
  expect_refused("delay", "line 1: 'delay': by= is missing");
  expect_refused("reorder", "line 1: 'reorder': by= is missing");
  expect_refused("reorder by=1ms", "line 1: 'reorder': 'by=1ms' is not a valid value");
  expect_refused("corrupt", "line 1: 'corrupt': bytes= is missing");
  expect_refused("corrupt bytes=65", "line 1: 'corrupt': 'bytes=65' is not a valid value");
  expect_refused("lose path=256", "line 1: 'lose': 'path=256' is not a valid value");
  expect_refused("drop path=1 nth=1", "line 1: 'drop': 'path' is not a key of this fault");
  expect_refused("event nth=1", "line 1: 'event': type= is missing");
  expect_refused("event type=QP_FATAL at=1s",
                 "line 1: 'event': QP_FATAL occurs at a request, so give nth=, every= or chance=");
  expect_refused(
      "down at=1s times=2",
      "line 1: 'down': 'times' applies to requests, so use nth=, every= or chance= instead of at=");
  expect_refused("down at=1s for=1s flaps=2", "line 1: 'down': up= and flaps= must be given together");
  expect_refused("down at=1s up=1s flaps=2", "line 1: 'down': for= is missing");
  expect_refused("fail status=GENERAL work=done peer=error nth=1",
                 "line 1: 'fail': work=done and peer=error cannot be combined");
  expect_refused("seed", "line 1: 'seed': seed takes one number");
  expect_refused("log loudly", "line 1: 'log': log takes no value");
  std::string many;
  for (int i = 0; i < 257; ++i) many += "drop nth=1\n";
  expect_refused(many, "line 257: 'drop': the plan has more than 256 faults");
}

TEST(FaultPlanTest, PlansInFiles) {
  const std::string path = ::testing::TempDir() + "plan-" + std::to_string(getpid());
  std::ofstream(path) << "# a plan\nfail status=GENERAL nth=1\n";
  EXPECT_EQ(try_plan(path), "");
  std::ofstream(path) << "# a plan\nfail status=GENERAL nth=1\ndrop\n";
  EXPECT_EQ(try_plan(path),
            "softverbs: " + path +
                ": line 3: 'drop': the rule does not say when the fault occurs; give nth=, every=, chance= "
                "or at=; because of this error, softverbs offers no device\n");
  std::ofstream(path) << std::string((64 << 10) + 1, '#');
  EXPECT_EQ(try_plan(path),
            "softverbs: " + path + ": File too large; because of this error, softverbs offers no device\n");
  unlink(path.c_str());
  EXPECT_EQ(try_plan(path),
            "softverbs: " + path +
                ": No such file or directory; because of this error, softverbs offers no device\n");
  EXPECT_EQ(try_plan("./"),
            "softverbs: ./: Is a directory; because of this error, softverbs offers no device\n");
}

TEST(FaultPlanTest, ControlFilesOfRails) {
  const std::string path = ::testing::TempDir() + "orders-" + std::to_string(getpid());
  setenv("SOFTVERBS_RAILS", path.c_str(), 1);
  EXPECT_EQ(try_devices(), "") << "it need not exist";
  std::ofstream(path) << "0 down\n# comment\n\n* up # all\n7 down\nunfinis";
  EXPECT_EQ(try_devices(), "");
  for (const char* line : {"0", "0 sideways", "8 up", "down 0", "0 down 1"}) {
    std::ofstream(path) << "0 up\n" << line << "\n";
    EXPECT_EQ(try_devices(),
              "softverbs: " + path + ": line 2: '" + line +
                  "' is not of the form RAIL up|down; because of this error, softverbs offers no device\n");
  }
  unlink(path.c_str());
}

}  // namespace
}  // namespace verbena::softverbs_test
