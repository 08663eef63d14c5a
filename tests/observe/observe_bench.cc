// What observing takes the thread that moves messages: a message of one work request, at either end. CPU time
// of the thread, so that who else runs on the machine counts for little. Asserts nothing.
#include <benchmark/benchmark.h>

#include "base/clock.h"
#include "observe/connection.h"

namespace verbena::observe {
namespace {

constexpr uint64_t kBytes = 65536;

Labels make_labels(Direction direction) {
  return {direction, "192.0.2.1:1", {"a:1"}};
}

void clock_read(benchmark::State& state) {
  for (auto step : state) benchmark::DoNotOptimize(base::monotonic_ns());
}
BENCHMARK(clock_read);

// `events`: what the end keeps for VERBENA_TRACE; 0: counters alone.
void send(benchmark::State& state) {
  Connection end(make_labels(Direction::kSend), static_cast<uint32_t>(state.range(0)));
  uint32_t sequence = 0;
  for (auto step : state) {
    end.note_post(sequence, kBytes, 0);
    end.note_chunk(sequence, Path::kDirect, 0, 7, kBytes);
    end.end_post();
    end.note_done(sequence++, kBytes);
  }
}
BENCHMARK(send)->ArgName("events")->Arg(0)->Arg(1024);

void receive(benchmark::State& state) {
  Connection end(make_labels(Direction::kReceive), static_cast<uint32_t>(state.range(0)));
  uint32_t sequence = 0;
  for (auto step : state) {
    end.note_post(sequence, kBytes, 7);
    end.note_grant(sequence);
    end.end_post();
    end.note_chunk(sequence, Path::kDirect, 0, 7, kBytes);
    end.note_done(sequence, kBytes);
    end.note_consumed(sequence++);
  }
}
BENCHMARK(receive)->ArgName("events")->Arg(0)->Arg(1024);

}  // namespace
}  // namespace verbena::observe

BENCHMARK_MAIN();
