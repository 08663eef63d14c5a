// What the proxy's thread alone spends on a descriptor: put queues that a thread fills as kernels do, an
// endpoint that completes everything at once, and the same over softverbs in host memory. Asserts nothing.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

#include "device/proxy/proxy.h"
#include "device/proxy/support/fake_endpoint.h"
#include "device/proxy/support/queue_writer.h"
#include "device/proxy/support/rdma_fleet.h"

namespace verbena::device_test {
namespace {

using symm::AbortWord;
using symm::Proxy;
using symm::PutQueue;

constexpr uint64_t kWindowBytes = 1 << 20;

// Takes everything and has it done by the next poll.
class InstantEndpoint final : public UnconnectedEndpoint {
 public:
  explicit InstantEndpoint(uint32_t lanes) : taken_(lanes), told_(lanes) {}

  Posting put(const Transfer& transfer, uint64_t) override { return take(transfer.lane); }
  Posting get(const Transfer& transfer, uint64_t) override { return take(transfer.lane); }
  Posting write_word(const RemoteWord& word, uint64_t, uint64_t) override { return take(word.lane); }
  Posting add_word(const RemoteWord& word, uint64_t, uint64_t) override { return take(word.lane); }
  Posting read_word(const RemoteWord& word, uint64_t) override { return take(word.lane); }
  void fence(uint32_t, uint32_t) override {}
  void ring() override {}
  uint32_t poll(std::span<EndpointCompletion> out) override {
    uint32_t count = 0;
    for (uint32_t lane = 0; lane < taken_.size() && count < out.size(); ++lane) {
      if (told_[lane] == taken_[lane]) continue;
      told_[lane] = taken_[lane];
      out[count++] = {1, lane, false, told_[lane], 0, 0};
    }
    return count;
  }
  void give_up(uint32_t, const std::string&) override {}
  const std::string& error(uint32_t) const override { return none_; }
  const std::string& refusal() const override { return none_; }
  uint64_t count_taken(uint32_t, uint32_t lane) const override { return taken_[lane]; }

 private:
  Posting take(uint32_t lane) {
    ++taken_[lane];
    return Posting::kTaken;
  }
  std::vector<uint64_t> taken_, told_;
  const std::string none_;
};

struct Bench {
  explicit Bench(uint32_t count)
      : endpoint(count),
        queues(*PutQueue::create({.count = count, .depth = 1024})),
        proxy(endpoint, queues, abort, {.count_ranks = 2}),
        writer(queues) {
    if (!proxy.add_window(0, kWindowBytes, 0)) std::abort();
  }
  InstantEndpoint endpoint;
  PutQueue queues;
  AbortWord abort = *AbortWord::create();
  Proxy proxy;
  QueueWriter writer;
};

// A round that finds nothing: what an idle proxy adds to the time until it sees a descriptor.
void idle_round(benchmark::State& state) {
  Bench bench(static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(bench.proxy.work());
}
BENCHMARK(idle_round)->ArgName("queues")->Arg(1)->Arg(4)->Arg(16);

// So many descriptors in each queue, until all are complete. The writer's part is in it: a few stores each.
void descriptors(benchmark::State& state, PutOperation operation) {
  const auto count = static_cast<uint32_t>(state.range(0));
  const auto burst = static_cast<uint64_t>(state.range(1));
  const bool is_put = operation == PutOperation::kPut;
  Bench bench(count);
  uint64_t goal = 0;
  for (auto _ : state) {
    for (uint32_t queue = 0; queue < count; ++queue) {
      for (uint64_t i = 0; i < burst; ++i)
        bench.writer.write(queue, describe(operation, 1, is_put ? 8 * i : 1, is_put ? 8 : 0, 4096 + 8 * i));
    }
    goal += burst;
    while (bench.writer.completed(count - 1) < goal) bench.proxy.work();
  }
  state.SetItemsProcessed(state.iterations() * count * static_cast<int64_t>(burst));
}
BENCHMARK_CAPTURE(descriptors, put_8_bytes, PutOperation::kPut)
    ->ArgNames({"queues", "burst"})
    ->ArgsProduct({{1, 4}, {1, 16, 256}});
BENCHMARK_CAPTURE(descriptors, add_word, PutOperation::kAddWord)
    ->ArgNames({"queues", "burst"})
    ->ArgsProduct({{1, 4}, {1, 16, 256}});

// The same with two ranks over softverbs in this process, by the proxy's work() and the device's threads.
void over_softverbs(benchmark::State& state) {
  const auto count = static_cast<uint32_t>(state.range(0));
  const auto burst = static_cast<uint64_t>(state.range(1));
  FleetShape shape = make_shape(2);
  shape.queues = {.count = count, .depth = 1024};
  shape.send_depth = 512;
  shape.starts = false;
  RdmaFleet fleet(shape);
  QueueWriter writer(fleet.queues(0));
  uint64_t goal = 0;
  for (auto _ : state) {
    for (uint32_t queue = 0; queue < count; ++queue) {
      for (uint64_t i = 0; i < burst; ++i)
        writer.write(queue, describe(PutOperation::kPut, 1, RdmaFleet::kDataOffset, 8,
                                     RdmaFleet::kDataOffset + 8 * (i + queue * burst)));
    }
    goal += burst;
    for (uint32_t queue = 0; queue < count;) {
      fleet.proxy(0).work();
      if (!fleet.proxy(0).error().empty()) return state.SkipWithError("the context has failed");
      while (queue < count && writer.completed(queue) >= goal) ++queue;
    }
  }
  state.SetItemsProcessed(state.iterations() * count * static_cast<int64_t>(burst));
}
BENCHMARK(over_softverbs)->ArgNames({"queues", "burst"})->ArgsProduct({{1, 4}, {1, 16, 256}})->UseRealTime();

}  // namespace
}  // namespace verbena::device_test

BENCHMARK_MAIN();
