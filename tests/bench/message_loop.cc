// One connection of the plugin to itself, on one thread, for counting instructions. Each kind of call is made
// in a function of its own, bench_*, for callgrind's --toggle-collect. usage: message_loop PLUGIN
// direct|staged RAILS WINDOW MESSAGES [LENGTH_BYTES]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/warnings.h"
#include "common/error.h"
#include "common/nccl_host.h"
#include "common/pattern.h"

namespace {

using namespace verbena;
using namespace verbena::tools;

constexpr size_t kPageBytes = 4096;
constexpr int kTableVersion = 11;
constexpr double kConnectTimeoutS = 10;
constexpr int kMaxTests = 1000;  // of one message: the null device completes at once
constexpr size_t kMaxWindow = 8;

struct Side {
  void* comm = nullptr;
  std::array<std::vector<std::byte>, kNcclBufferBytes.size()> buffers;
  std::array<void*, kNcclBufferBytes.size()> mhandles{};

  std::byte* message(size_t place, size_t length_bytes) {
    const size_t stride = std::max(length_bytes, kPageBytes);
    return buffers.back().data() + place * stride;
  }
  void* mhandle() const { return mhandles.back(); }
};

struct Loop {
  NetPlugin* net = nullptr;
  Side sender, receiver;
  NcclHost* host = nullptr;
  size_t length_bytes = 8;
  std::array<void*, kMaxWindow> sends{}, receives{};
};

void* require(void* request, const char* call) {
  if (request == nullptr) throw ToolError(std::string(call) + " took nothing");
  return request;
}

void register_buffers(NetPlugin& net, Side& side) {
  for (size_t i = 0; i < kNcclBufferBytes.size(); ++i) {
    side.buffers[i].resize(kNcclBufferBytes[i]);
    side.mhandles[i] =
        net.register_memory(side.comm, side.buffers[i].data(), kNcclBufferBytes[i], abi::kPtrHost);
  }
}

}  // namespace

extern "C" {

[[gnu::noinline]] void bench_irecv(Loop& loop, size_t place) {
  loop.receives[place] = loop.net->irecv(loop.receiver.comm, loop.receiver.message(place, loop.length_bytes),
                                         loop.length_bytes, loop.receiver.mhandle(), false);
}
[[gnu::noinline]] void bench_isend(Loop& loop, size_t place) {
  loop.sends[place] = loop.net->isend(loop.sender.comm, loop.sender.message(place, loop.length_bytes),
                                      loop.length_bytes, loop.sender.mhandle());
}
[[gnu::noinline]] bool bench_send_test(Loop& loop, size_t place) {
  return loop.net->test(loop.sends[place]).has_value();
}
[[gnu::noinline]] bool bench_receive_test(Loop& loop, size_t place) {
  return loop.net->test(loop.receives[place]).has_value();
}
// One that finds nothing: NCCL tests again and again.
[[gnu::noinline]] bool bench_idle_test(Loop& loop, size_t place) {
  return loop.net->test(loop.receives[place]).has_value();
}
[[gnu::noinline]] void bench_consume(Loop& loop, size_t place) {
  loop.net->consume(loop.receiver.comm, loop.receives[place]);
}
}

namespace {

// Returns the tests that found nothing, of sends and receives.
int wait_until_done(Loop& loop, bool (*test)(Loop&, size_t), size_t place) {
  for (int idle = 0; idle < kMaxTests; ++idle) {
    if (test(loop, place)) return idle;
  }
  throw ToolError("a message does not complete");
}

void unpack(Loop& loop, size_t place) {
  if (loop.host->slots() != nullptr)
    loop.host->unpack({loop.receiver.message(place, loop.length_bytes), loop.length_bytes});
}

struct Idle {
  uint64_t send_tests = 0, receive_tests = 0;
};

void run(Loop& loop, size_t window, uint64_t messages, Idle& idle) {
  for (uint64_t first = 0; first < messages; first += window) {
    for (size_t i = 0; i < window; ++i) {
      fill_pattern({loop.sender.message(i, loop.length_bytes), loop.length_bytes}, first + i);
      bench_irecv(loop, i);
      require(loop.receives[i], "irecv");
    }
    bench_idle_test(loop, 0);
    for (size_t i = 0; i < window; ++i) {
      bench_isend(loop, i);
      require(loop.sends[i], "isend");
    }
    for (size_t i = 0; i < window; ++i)
      idle.send_tests += static_cast<uint64_t>(wait_until_done(loop, bench_send_test, i));
    for (size_t i = 0; i < window; ++i) {
      idle.receive_tests += static_cast<uint64_t>(wait_until_done(loop, bench_receive_test, i));
      unpack(loop, i);
      const PatternCheck check =
          check_pattern({loop.receiver.message(i, loop.length_bytes), loop.length_bytes}, first + i);
      if (check.wrong_bytes != 0) throw ToolError("wrong bytes");
      bench_consume(loop, i);
    }
  }
}

void run_all(char** arguments) {
  const std::string path = arguments[2];
  const int rails = std::stoi(arguments[3]);
  const size_t window = std::stoul(arguments[4]);
  if (window < 1 || window > kMaxWindow) throw ToolError("a window has 1 to 8 messages");
  Loop loop;
  if (arguments[6] != nullptr) loop.length_bytes = std::stoul(arguments[6]);
  setenv("VERBENA_UNPACK", path == "staged" ? "1" : "0", 1);
  setenv("VERBENA_MERGE_NICS", "1", 1);
  setenv("NULL_IBVERBS_DEVICES", arguments[3], 1);
  const PluginLibrary library(arguments[1]);
  const std::unique_ptr<NetPlugin> net = library.adapt(kTableVersion);
  loop.net = net.get();
  net->init(log_plugin_line<print_warning>);
  NcclHost host(*net, kConnectTimeoutS);
  loop.host = &host;
  host.connect(choose_device(*net, 0, rails));
  loop.sender.comm = host.send_comm();
  loop.receiver.comm = host.receive_comm();
  register_buffers(*net, loop.sender);
  register_buffers(*net, loop.receiver);
  net->set_attributes(describe_ring_all_reduce(abi::kProtoSimple));
  Idle idle;
  run(loop, window, std::stoul(arguments[5]), idle);
  std::printf("idle tests: %lu of sends, %lu of receives\n", idle.send_tests, idle.receive_tests);
  for (Side* side : {&loop.sender, &loop.receiver}) {
    for (void* mhandle : side->mhandles) net->deregister_memory(side->comm, mhandle);
  }
  host.close();
  net->finalize();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6 || argc > 7) {
    std::fprintf(stderr, "usage: %s PLUGIN direct|staged RAILS WINDOW MESSAGES [LENGTH_BYTES]\n", argv[0]);
    return kExitFailed;
  }
  try {
    run_all(argv);
    return kExitOk;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "message_loop: %s\n", error.what());
    return kExitFailed;
  }
}
