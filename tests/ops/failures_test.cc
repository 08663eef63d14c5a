// What a call does after something has gone wrong: a rank that came late, counts that cannot be, calls that
// differ among ranks, settings and GPUs that do. Nothing goes on with wrong numbers, and the next call says
// why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/scoped_environment.h"
#include "ops/rank_process.h"
#include "verbena/moe.h"

namespace verbena {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// Between the ranks of a test, however slow the machine is.
class SharedFlag {
 public:
  SharedFlag()
      : word_(static_cast<std::atomic<int>*>(
            mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedFlag() { munmap(word_, sizeof(int)); }
  SharedFlag(const SharedFlag&) = delete;
  SharedFlag& operator=(const SharedFlag&) = delete;
  void raise() { word_->store(1); }
  void wait() {
    for (int i = 0; i < 60'000 && word_->load() == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::atomic<int>* word_;
};

float widen(uint16_t bfloat16) {
  const uint32_t bits = uint32_t{bfloat16} << 16;
  float number = 0;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}
uint16_t narrow(float number) {
  uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

// A stream's work, captured once.
class Replay {
 public:
  explicit Replay(const std::function<void(void* stream)>& enqueue) {
    void* graph = nullptr;
    find_in_driver<int (*)(void**, unsigned)>("cuStreamCreate")(&stream_, 0);
    find_in_driver<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream_, 0);
    enqueue(stream_);
    find_in_driver<int (*)(void*, void**)>("cuStreamEndCapture")(stream_, &graph);
    find_in_driver<int (*)(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(&exec_, graph,
                                                                                              0);
  }
  void launch() {
    find_in_driver<int (*)(void*, void*)>("cuGraphLaunch")(exec_, stream_);
    find_in_driver<int (*)(void*)>("cuStreamSynchronize")(stream_);
  }

 private:
  void *stream_ = nullptr, *exec_ = nullptr;
};

// One call that both ranks make of x = 4 step + 1 + rank, and what becomes of it.
struct Way {
  const char* name;
  std::function<verbena_result(Rank& rank, uint32_t number, void* stream)> enqueue;
  size_t count;  // elements of the output
  std::function<float(uint32_t step, size_t element)> expect = [](uint32_t step, size_t) {
    return static_cast<float>(8 * step + 3);
  };
  bool is_short = false;  // bfloat16, which has all these numbers
};

verbena_ops_choice choose(verbena_ops_algorithm algorithm) {
  return {algorithm, 0, 0, 0};
}
// `offset` elements behind a multiple of 16 bytes on rank 1: there it is the kernel for any address.
Way sum_by(const char* name, verbena_ops_algorithm algorithm, uint32_t offset = 0) {
  return {name,
          [=](Rank& rank, uint32_t number, void* stream) {
            const verbena_ops_choice choice = choose(algorithm);
            return verbena_ops_all_reduce(rank.ops(), rank.tensor(0) + number * offset, rank.tensor(1),
                                          kCount - 4 * offset, VERBENA_OPS_FLOAT32, VERBENA_OPS_SUM, &choice,
                                          stream);
          },
          kCount - 4 * offset};
}
Way coded(verbena_ops_algorithm codec) {
  return {"few bits",
          [=](Rank& rank, uint32_t, void* stream) {
            const verbena_ops_choice choice = choose(codec);
            return verbena_ops_all_reduce_quantised(rank.ops(), rank.tensor(0), rank.tensor(1), kCount,
                                                    VERBENA_OPS_BFLOAT16, codec, 0, &choice, stream);
          },
          kCount, Way{}.expect, true};
}
// Ten rows, of which each rank has four and a half to norm; a norm of equal numbers is ones.
Way norm(const char* name, bool is_sharded) {
  return {name,
          [=](Rank& rank, uint32_t, void* stream) {
            verbena_ops_norm rows{};
            rows.rows = 10;
            rows.hidden = rows.output_stride = kCount / 10;
            rows.output = reinterpret_cast<uint16_t*>(rank.tensor(1));
            const verbena_ops_choice choice = choose(VERBENA_OPS_ONE_SHOT);
            void* const sum = rank.tensor(1) + kCount / 2;
            if (is_sharded)
              return verbena_ops_reduce_scatter_norm_all_gather(rank.ops(), rank.tensor(0), sum,
                                                                VERBENA_OPS_BFLOAT16, &rows, &choice, stream);
            rows.output = sum;
            return verbena_ops_all_reduce_norm(rank.ops(), rank.tensor(0), rank.tensor(1),
                                               VERBENA_OPS_BFLOAT16, &rows, VERBENA_OPS_AUTO, &choice,
                                               stream);
          },
          kCount, is_sharded ? [](uint32_t, size_t) { return 1.0F; } : Way{}.expect, true};
}
Way gather_by(const char* name, verbena_ops_algorithm algorithm) {
  return {name,
          [=](Rank& rank, uint32_t, void* stream) {
            const verbena_ops_choice choice = choose(algorithm);
            return verbena_ops_all_gather(rank.ops(), rank.tensor(0), rank.tensor(1), 1,
                                          kCount / 2 * sizeof(float), &choice, stream);
          },
          kCount,
          [](uint32_t step, size_t element) {
            return static_cast<float>(4 * step + 1 + (element < kCount / 2 ? 0 : 1));
          }};
}
Way broadcast() {
  return {"broadcast",
          [](Rank& rank, uint32_t, void* stream) {
            return verbena_ops_broadcast(rank.ops(), rank.tensor(0), rank.tensor(1), kCount * sizeof(float),
                                         1, nullptr, stream);
          },
          kCount, [](uint32_t step, size_t) { return static_cast<float>(4 * step + 2); }};
}
Way group() {
  return {"group",
          [](Rank& rank, uint32_t, void* stream) {
            const verbena_ops_choice choice = choose(VERBENA_OPS_ONE_SHOT);
            if (const verbena_result result = verbena_ops_group_begin(rank.ops()); result != VERBENA_SUCCESS)
              return result;
            for (int half = 0; half < 2; ++half)
              static_cast<void>(verbena_ops_all_reduce(
                  rank.ops(), rank.tensor(0) + half * kCount / 2, rank.tensor(1) + half * kCount / 2,
                  kCount / 2, VERBENA_OPS_FLOAT32, VERBENA_OPS_SUM, &choice, stream));
            return verbena_ops_group_end(rank.ops(), stream);
          },
          kCount};
}
std::vector<Way> list_ways() {
  return {sum_by("one-shot", VERBENA_OPS_ONE_SHOT),
          sum_by("two-shot", VERBENA_OPS_TWO_SHOT),
          sum_by("bulk-one-shot", VERBENA_OPS_BULK_ONE_SHOT),
          sum_by("bulk-two-shot", VERBENA_OPS_BULK_TWO_SHOT),
          sum_by("direct", VERBENA_OPS_DIRECT),
          sum_by("one-shot of other addresses", VERBENA_OPS_ONE_SHOT, 1),
          sum_by("two-shot of other addresses", VERBENA_OPS_TWO_SHOT, 1),
          coded(VERBENA_OPS_FP8),
          coded(VERBENA_OPS_INT4_INT8),
          norm("all-reduce with a norm", false),
          norm("reduce-scatter, norm, all-gather", true),
          gather_by("all-gather by packets", VERBENA_OPS_ONE_SHOT),
          gather_by("all-gather by chunks", VERBENA_OPS_BULK_ONE_SHOT),
          broadcast(),
          group()};
}

float read(Rank& rank, const Way& way, size_t tensor, size_t i) {
  return way.is_short ? widen(reinterpret_cast<const uint16_t*>(rank.tensor(tensor))[i])
                      : rank.tensor(tensor)[i];
}
void fill(Rank& rank, const Way& way, uint32_t number, uint32_t step) {
  const auto x = static_cast<float>(4 * step + 1 + number);
  for (size_t i = 0; i < kCount; ++i) {
    rank.tensor(1)[i] = -1;
    if (way.is_short) {
      reinterpret_cast<uint16_t*>(rank.tensor(0))[i] = narrow(x);
    } else {
      rank.tensor(0)[i] = x;
    }
  }
}
bool is_nan(Rank& rank, const Way& way) {
  for (size_t i = 0; i < way.count; ++i)
    if (!std::isnan(read(rank, way, 1, i))) return false;
  return true;
}
// Of a step: right, or nothing but NaNs.
std::string check_step(Rank& rank, const Way& way, uint32_t step, bool& is_there) {
  is_there = !is_nan(rank, way);
  for (size_t i = 0; is_there && i < way.count; ++i) {
    const float got = read(rank, way, 1, i), want = way.expect(step, i);
    if (!(std::fabs(got - want) <= 0.02F * want))
      return std::string(way.name) + ", step " + std::to_string(step) + ": element " + std::to_string(i) +
             " is " + std::to_string(got);
  }
  return "";
}

// On a busy machine a rank may be late that is not to be: then the test of it begins again.
constexpr const char* kTooBusy = "the machine is too busy";
std::string run_patiently(const std::function<std::string()>& attempt) {
  std::string said;
  for (int i = 0; i < 8; ++i) {
    said = attempt();
    if (said.find(kTooBusy) == std::string::npos) break;
  }
  return said;
}

// Rank 1 comes to step 1 when rank 0 has given up; both go on as an engine does that replays a graph and asks
// nobody. What they see is right or NaN; the first call that is not a replay says why; a reset mends all.
TEST(OpsFailures, AfterALateRankNumbersAreRightOrNan) {
  const base::ScopedEnvironment environment({{"VERBENA_SYMM_TIMEOUT_MS", "300"}});
  for (const Way& way : list_ways()) {
    const auto attempt = [&] {
      SharedFlag gave_up;
      return run({0, 0}, [&](Rank& rank, uint32_t number) -> std::string {
        rank.create_for_all();
        Replay replay([&](void* stream) { way.enqueue(rank, number, stream); });
        bool is_there = false, were_all = true;
        for (uint32_t step = 0; step < 8; ++step) {
          fill(rank, way, number, step);
          if (step == 1 && number == 1) gave_up.wait();
          replay.launch();
          if (step == 1 && number == 0) gave_up.raise();
          if (const std::string wrong = check_step(rank, way, step, is_there); !wrong.empty()) return wrong;
          if (step == 0 && !is_there) {
            gave_up.raise();
            return kTooBusy;
          }
          if (step >= 3 && is_there) return std::string(way.name) + ": goes on after a failure";
          were_all = were_all && is_there;
        }
        if (were_all) return std::string(way.name) + ": nothing has failed";
        const verbena_result result = way.enqueue(rank, number, nullptr);
        const std::string said = verbena_last_error();
        if (result != VERBENA_TIMEOUT || said.find("rank 1") == std::string::npos)
          return std::string(way.name) + ": the next call says " + std::to_string(result) + " " + said;
        check(verbena_ops_reset(rank.ops()));
        fill(rank, way, number, 9);
        replay.launch();
        if (const std::string wrong = check_step(rank, way, 9, is_there); !wrong.empty()) return wrong;
        return is_there ? "" : kTooBusy;
      });
    };
    EXPECT_EQ(run_patiently(attempt), "");
  }
}

// The late rank still has kernels in its stream when all reset: they must not take new numbers for old ones.
TEST(OpsFailures, AResetWaitsForKernelsOfALateRank) {
  const base::ScopedEnvironment environment({{"VERBENA_SYMM_TIMEOUT_MS", "300"}});
  const auto attempt = [] {
    return run({0, 0}, [](Rank& rank, uint32_t number) -> std::string {
      rank.create_for_all();
      const Way way = sum_by("one-shot", VERBENA_OPS_ONE_SHOT);
      fill(rank, way, number, 0);
      if (number == 1) static_cast<void>(verbena_ops_pause(rank.ops(), 900'000'000, nullptr));
      for (int i = 0; i < 3; ++i)
        if (way.enqueue(rank, number, nullptr) != VERBENA_SUCCESS) return kTooBusy;
      if (number == 0) rank.synchronize();
      check(verbena_ops_reset(rank.ops()));
      bool is_there = false;
      for (uint32_t step = 1; step < 6; ++step) {
        fill(rank, way, number, step);
        if (way.enqueue(rank, number, nullptr) != VERBENA_SUCCESS) return kTooBusy;
        rank.synchronize();
        if (const std::string wrong = check_step(rank, way, step, is_there); !wrong.empty()) return wrong;
        if (!is_there) return kTooBusy;
      }
      return "";
    });
  };
  EXPECT_EQ(run_patiently(attempt), "");
}

// Copy engines gather where a rank does not come in time: named like any other, and whoever waited has no
// result. Copies of the late rank itself may come at any time behind that.
TEST(OpsFailures, CopyEnginesMeetALateRank) {
  const base::ScopedEnvironment environment({{"VERBENA_SYMM_TIMEOUT_MS", "300"}});
  const auto attempt = [] {
    return run({0, 0}, [](Rank& rank, uint32_t number) -> std::string {
      rank.create_for_all();
      const Way way = gather_by("copy engines", VERBENA_OPS_COPY_ENGINES);
      for (uint32_t step = 0; step < 2; ++step) {
        fill(rank, way, number, step);
        if (step == 1 && number == 1) static_cast<void>(verbena_ops_pause(rank.ops(), 900'000'000, nullptr));
        if (way.enqueue(rank, number, nullptr) != VERBENA_SUCCESS) return kTooBusy;
        if (step == 1) break;
        rank.synchronize();
        bool is_there = false;
        if (const std::string wrong = check_step(rank, way, step, is_there); !wrong.empty()) return wrong;
        if (!is_there) return kTooBusy;
      }
      rank.synchronize();
      if (number == 0 && !std::isnan(read(rank, way, 1, 0))) return "its own message is there";
      const verbena_result next = way.enqueue(rank, number, nullptr);
      if (next != VERBENA_TIMEOUT) return "the next call was taken: " + std::to_string(next);
      const std::string said = verbena_last_error();
      return said.find("rank 1") == std::string::npos ? "rank 1 is not named: " + said : "";
    });
  };
  EXPECT_EQ(run_patiently(attempt), "");
}

// Rank 1 sees counts beyond its tensor. Nobody waits for it until a limit that is a minute: all are told at
// once.
TEST(OpsFailures, WrongCountsAreToldToAll) {
  const std::string said = run({0, 0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    rank.create_for_all();
    const auto counts = rank.context().allocate(64);
    for (int i = 0; i < 3; ++i) counts.address<int64_t>()[i] = 8;
    if (number == 1) counts.address<int64_t>()[2] = int64_t{1} << 40;
    const Way way = sum_by("", VERBENA_OPS_ONE_SHOT);
    fill(rank, way, number, 0);
    const verbena_ops_sizes sizes{4, 32, 96, 32};
    const verbena_result first =
        verbena_ops_all_gather_v(rank.ops(), rank.tensor(0), rank.tensor(1), counts.address<int64_t>(),
                                 nullptr, &sizes, nullptr, nullptr);
    rank.synchronize();
    check(first);
    for (int i = 0; i < 24; ++i)
      if (!std::isnan(rank.tensor(1)[i])) return "the output is not NaN";
    if (rank.tensor(1)[24] != -1) return "wrote beyond the output";
    if (rank.all_reduce() != VERBENA_INVALID_ARGUMENT) return "not told";
    return verbena_last_error();
  });
  for (const char* const rank : {"rank 0: ", "rank 1: ", "rank 2: "})
    EXPECT_THAT(said, HasSubstr(std::string(rank) + "ops: workspace")) << said;
  EXPECT_THAT(said, AllOf(HasSubstr("rank 1 made an invalid call"), Not(HasSubstr("not told")),
                          Not(HasSubstr("NaN\n"))));
}
// Counts or offsets are added up from the GPU's memory: none leads outside the tensors.
TEST(OpsFailures, OffsetsBeyondTheTensorsAreRefused) {
  struct Case {
    int64_t count, offset;
  };
  for (const Case& one : {Case{8, 17}, Case{8, -1}, Case{-8, 0}, Case{8, INT64_MAX}, Case{INT64_MAX, 8}}) {
    SCOPED_TRACE(testing::Message() << one.count << " at " << one.offset);
    expect_run({0, 0}, [&](Rank& rank, uint32_t number) -> std::string {
      rank.create_for_all();
      const auto memory = rank.context().allocate(64);
      auto* const counts = memory.address<int64_t>();
      counts[0] = 8;
      counts[1] = one.count;
      counts[2] = 0;
      counts[3] = one.offset;
      fill(rank, sum_by("", VERBENA_OPS_ONE_SHOT), number, 0);
      const verbena_ops_sizes sizes{4, 96, 96, 32};
      check(verbena_ops_all_gather_v(rank.ops(), rank.tensor(0), rank.tensor(1), counts, counts + 2, &sizes,
                                     nullptr, nullptr));
      rank.synchronize();
      if (rank.tensor(1)[24] != -1) return "wrote beyond the output";
      return rank.all_reduce() == VERBENA_INVALID_ARGUMENT ? "" : "not refused";
    });
  }
}

TEST(OpsFailures, CallsThatDifferAreNamedWhereTheyAreCompared) {
  const base::ScopedEnvironment environment({{"VERBENA_OPS_CHECK", "1"}});
  const auto run_calls = [](const std::function<verbena_result(Rank&, uint32_t)>& call) {
    return run({0, 0}, [&](Rank& rank, uint32_t number) -> std::string {
      rank.create_for_all();
      // Addresses are each rank's own.
      check(verbena_ops_all_reduce(rank.ops(), rank.tensor(0) + number, rank.tensor(number), 96,
                                   VERBENA_OPS_FLOAT32, VERBENA_OPS_SUM, nullptr, nullptr));
      rank.synchronize();
      check(call(rank, number));
      rank.synchronize();
      // Each rank refuses the call itself: no rank may end a peer's wait for records.
      char text[512] = "";
      const bool is_refused =
          verbena_context_get_error(rank.context().handle(), text, sizeof(text)) != VERBENA_SUCCESS;
      const std::string itself = "rank " + std::to_string(number) + " made an invalid call";
      if (is_refused && std::string(text).find(itself) == std::string::npos) return text;
      const bool is_taken = rank.all_reduce() == VERBENA_SUCCESS;
      rank.synchronize();
      return is_taken ? "nothing was said" : verbena_last_error();
    });
  };
  const std::string counts = run_calls([](Rank& rank, uint32_t number) {
    return verbena_ops_all_reduce(rank.ops(), rank.tensor(0), rank.tensor(1), 100 + number,
                                  VERBENA_OPS_FLOAT32, VERBENA_OPS_SUM, nullptr, nullptr);
  });
  EXPECT_THAT(
      counts,
      AllOf(HasSubstr("rank 0: ops: ranks 0 and 1 of the team make different calls: all-reduce of 400 "
                      "bytes of float32, sum"),
            HasSubstr("rank 1: ops: ranks 1 and 0 of the team make different calls: all-reduce of 404 "
                      "bytes of float32, sum")));
  EXPECT_THAT(run_calls([](Rank& rank, uint32_t number) {
                return verbena_ops_all_reduce(
                    rank.ops(), rank.tensor(0), rank.tensor(1), 100, VERBENA_OPS_FLOAT32,
                    number == 0 ? VERBENA_OPS_SUM : VERBENA_OPS_MAX, nullptr, nullptr);
              }),
              HasSubstr("different calls"));
  EXPECT_THAT(run_calls([](Rank& rank, uint32_t number) {
                return verbena_ops_broadcast(rank.ops(), rank.tensor(0), rank.tensor(1), 400, number, nullptr,
                                             nullptr);
              }),
              HasSubstr("from a root"));
  EXPECT_THAT(run_calls([](Rank& rank, uint32_t number) {
                const verbena_ops_choice choice{VERBENA_OPS_ONE_SHOT, 1 + number, 0, 0};
                return verbena_ops_all_reduce(rank.ops(), rank.tensor(0), rank.tensor(1), 100,
                                              VERBENA_OPS_FLOAT32, VERBENA_OPS_SUM, &choice, nullptr);
              }),
              HasSubstr("2 blocks"));
  // Of these two peers write to where a rank's own tensor lies.
  EXPECT_THAT(run_calls([](Rank& rank, uint32_t number) {
                const verbena_ops_choice direct{VERBENA_OPS_DIRECT, 0, 0, 0};
                return verbena_ops_all_reduce(rank.ops(), rank.tensor(0), rank.tensor(1) + 4 * number, 64,
                                              VERBENA_OPS_FLOAT32, VERBENA_OPS_SUM, &direct, nullptr);
              }),
              HasSubstr("output at byte 16 of their windows"));
  EXPECT_THAT(run_calls([](Rank& rank, uint32_t number) {
                const verbena_ops_choice copies{VERBENA_OPS_COPY_ENGINES, 0, 0, 0};
                return verbena_ops_all_gather(rank.ops(), rank.tensor(0), rank.tensor(1) + number, 1, 64,
                                              &copies, nullptr);
              }),
              HasSubstr("output at byte 4 of their windows"));
  EXPECT_THAT(run_calls([](Rank& rank, uint32_t) { return rank.all_reduce(); }),
              AllOf(HasSubstr("rank 0: nothing was said"), HasSubstr("rank 1: nothing was said")));
}

TEST(OpsFailures, SettingsThatDifferAreNamed) {
  const std::string said = run({0, 0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    verbena_ops_options options{};
    options.has_windows = number == 2 ? 1 : 0;
    verbena_ops* ops = nullptr;
    const verbena_result result = verbena_ops_create(
        rank.context().handle(), verbena_team_world(rank.context().handle()), &options, &ops);
    return result == VERBENA_INVALID_USAGE ? verbena_last_error() : "was made";
  });
  EXPECT_THAT(
      said, AllOf(HasSubstr("rank 0: ops: ranks 0 and 2 differ in has_windows"),
                  HasSubstr("rank 2: ops: ranks 0 and 2 differ in has_windows"), Not(HasSubstr("was made"))));
}
// A communicator has at most 16 ranks, an exchange of tokens 32. Every rank gets the error.
TEST(OpsFailures, TooManyRanks) {
  const base::ScopedEnvironment environment({{"FAKE_GPUS", "33"}});
  expect_run(std::vector<int>(33, 0), [](Rank& rank, uint32_t) -> std::string {
    const verbena_team* const world = verbena_team_world(rank.context().handle());
    if (rank.create(world) != VERBENA_INVALID_ARGUMENT) return "a communicator";
    std::string said = verbena_last_error();
    if (said.find("a team of 33 ranks: at most 16") == std::string::npos) return said;
    verbena_moe_options options{};
    options.experts = options.max_tokens = 33;
    options.top_k = 1;
    options.hidden = 8;
    verbena_moe* moe = nullptr;
    if (verbena_moe_create(rank.context().handle(), world, &options, &moe) != VERBENA_INVALID_ARGUMENT)
      return "an exchange";
    said = verbena_last_error();
    if (said.find("the number of ranks is 33") == std::string::npos) return said;
    return verbena_moe_workspace_bytes(&options, 33) == 0 ? "" : "a workspace";
  });
}
// The reason is reported, by the operations and by their context.
TEST(OpsFailures, AnErrorWordThatCannotBeRead) {
  const std::string said = run({0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    rank.create_for_all();
    if (number == 0) return "";
    const base::ScopedEnvironment environment({{"FAKE_GPUS", "1"}});  // this rank's GPU has gone
    char ops[512] = "", context[512] = "";
    const bool fails =
        verbena_ops_get_error(rank.ops(), ops, sizeof(ops)) != VERBENA_SUCCESS &&
        verbena_context_get_error(rank.context().handle(), context, sizeof(context)) != VERBENA_SUCCESS;
    return fails ? std::string(ops) + "; context: " + context : "no error";
  });
  EXPECT_THAT(said,
              ContainsRegex("rank 1: ops: .*no CUDA context for the GPU.*; context: .*no CUDA context"));
}
TEST(OpsFailures, OneRanksFailureIsTheReasonOfAll) {
  const std::string said = run({0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    verbena_ops_options options{};
    options.blocks = number == 1 ? 513 : 2;
    verbena_ops* ops = nullptr;
    const verbena_result result = verbena_ops_create(
        rank.context().handle(), verbena_team_world(rank.context().handle()), &options, &ops);
    return result == VERBENA_SUCCESS ? "was made" : verbena_last_error();
  });
  EXPECT_THAT(said, AllOf(HasSubstr("rank 1: ops: 513 blocks: at most 512 are possible"),
                          HasSubstr("rank 0: ops: rank 1 cannot create the communicator: ops: 513 blocks")));
}

TEST(OpsFailures, KernelsThatTheDriverIsTooOldFor) {
  const base::ScopedEnvironment environment({{"FAKE_GPU_TAKES_NO_MODULES", "1"}});
  EXPECT_THAT(
      run({0, 0},
          [](Rank& rank, uint32_t) -> std::string {
            rank.create(verbena_team_world(rank.context().handle()));
            return verbena_last_error();
          }),
      AllOf(HasSubstr(
                "rank 0: ops: cannot load the kernels, which were built with CUDA 13.9.1 and need a driver"),
            HasSubstr("(this driver supports CUDA 13.0)")));
}

// GPU 1 has no clusters of blocks: rows are spread as it can.
TEST(OpsFailures, DifferentGpusChooseAlike) {
  const base::ScopedEnvironment environment({{"FAKE_GPU_CAPABILITIES", "9,8"}});
  expect_run({0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    rank.create_for_all();
    // Two rows of 512 numbers, bfloat16 ones.
    constexpr uint16_t kOne = 0x3f80, kTwo = 0x4000;
    auto* const input = reinterpret_cast<uint16_t*>(rank.tensor(0));
    auto* const output = reinterpret_cast<uint16_t*>(rank.tensor(1));
    for (size_t i = 0; i < 1024; ++i) input[i] = kOne;
    std::memset(output, 0, 2048);
    verbena_ops_norm norm{};
    norm.rows = 1;
    norm.hidden = 1024;
    norm.output = output;
    norm.output_stride = 1024;
    const verbena_ops_choice choice{VERBENA_OPS_ONE_SHOT, 0, 0, 0};
    check(verbena_ops_all_reduce_norm(rank.ops(), input, input, VERBENA_OPS_BFLOAT16, &norm, VERBENA_OPS_AUTO,
                                      &choice, nullptr));
    rank.synchronize();
    char text[512] = "";
    if (verbena_ops_get_error(rank.ops(), text, sizeof(text)) != VERBENA_SUCCESS) return text;
    for (size_t i = 0; i < 1024; ++i)
      if (input[i] != kTwo || output[i] != kOne) return "element " + std::to_string(i) + " is wrong";
    static_cast<void>(number);
    return "";
  });
}

// Kernels of two communicators must both have multiprocessors; and both use the same loaded kernels.
TEST(OpsFailures, ASecondCommunicatorLeavesTheFirstRoom) {
  expect_run({0, 0}, [](Rank& rank, uint32_t) -> std::string {
    verbena_context* const context = rank.context().handle();
    verbena_ops *first = nullptr, *second = nullptr;
    verbena_ops_options options{};
    options.packet_bytes = options.chunk_bytes = 8 << 20;
    const auto count_blocks = [](verbena_ops* ops) {
      verbena_ops_choice choice{};
      static_cast<void>(verbena_ops_choose(ops, VERBENA_OPS_ALL_REDUCE, 32 << 20, &choice));
      return choice.blocks;
    };
    if (verbena_ops_create(context, verbena_team_world(context), &options, &first) != 0 ||
        verbena_ops_create(context, verbena_team_world(context), &options, &second) != 0)
      return verbena_last_error();
    const auto count_modules = find_in_driver<int (*)()>("fake_gpu_count_modules");
    std::string said;
    if (count_blocks(first) != 128) said += " first " + std::to_string(count_blocks(first));
    if (count_blocks(second) != 64) said += " second " + std::to_string(count_blocks(second));
    if (count_modules() != 2) said += " modules " + std::to_string(count_modules());
    static_cast<void>(verbena_ops_destroy(second));
    static_cast<void>(verbena_ops_destroy(first));
    return said + (count_modules() == 0 ? "" : " modules stay");
  });
}

// The second communicator has half of the blocks: two of the first one's size have no room in this heap.
TEST(OpsFailures, MemoryFollowsTheNumberOfBlocks) {
  const base::ScopedEnvironment environment({{"VERBENA_SYMM_HEAP_BYTES", "320m"}});
  expect_run({0, 0}, [](Rank& rank, uint32_t) -> std::string {
    verbena_context* const context = rank.context().handle();
    std::string said;
    verbena_ops* made[4] = {};
    const auto create = [&](uint32_t index, verbena_ops_options options) {
      if (verbena_ops_create(context, verbena_team_world(context), &options, &made[index]) != 0)
        said += std::to_string(index) + ": " + verbena_last_error() + "; ";
    };
    create(0, {});
    create(1, {});
    for (const uint32_t index : {0, 1}) static_cast<void>(verbena_ops_destroy(made[index]));
    verbena_ops_options few{};
    few.blocks = 8;
    for (const uint32_t index : {0, 1, 2, 3}) create(index, few);
    for (verbena_ops* const ops : made) static_cast<void>(verbena_ops_destroy(ops));
    return said;
  });
}

TEST(OpsFailures, ChunksAreMultiplesOfAVector) {
  expect_run({0, 0}, [](Rank& rank, uint32_t) -> std::string {
    rank.create_for_all();
    for (const uint32_t bytes : {1U, 24U, 4097U}) {
      const verbena_ops_choice choice{VERBENA_OPS_BULK_TWO_SHOT, 0, 0, bytes};
      if (rank.all_reduce(&choice) != VERBENA_INVALID_ARGUMENT) return std::to_string(bytes) + " were taken";
    }
    const verbena_ops_choice choice{VERBENA_OPS_BULK_TWO_SHOT, 0, 0, 48};
    check(rank.all_reduce(&choice));
    return rank.has_sum(2, 1) ? "" : "wrong";
  });
}

}  // namespace
}  // namespace verbena
