// verbena/moe.h on emulated GPUs, ranks as processes: tokens there and back, from a graph whose ids change, a
// rank that does not come, and what is refused. tests/device/moe judges the kernels.
#include "verbena/moe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/scoped_environment.h"
#include "ops/rank_process.h"

namespace verbena {
namespace {

constexpr uint32_t kExperts = 12, kMaxTokens = 9, kTopK = 3, kHidden = 24;

uint16_t to_bfloat16(float number) {
  uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}
verbena_moe_options make_options(bool is_exact = true, bool is_in_windows = false) {
  verbena_moe_options options{};
  options.experts = kExperts;
  options.max_tokens = kMaxTokens;
  options.top_k = kTopK;
  options.hidden = kHidden;
  options.max_scale_bytes = 4;  // also of a cast: one scale
  options.exact = is_exact ? 1 : 0;
  options.blocks = 2;
  options.in_windows = is_in_windows ? 1 : 0;
  return options;
}
std::string say(const char* what, verbena_result result) {
  return result == VERBENA_SUCCESS ? "" : std::string(what) + ": " + verbena_last_error();
}

// A rank's exchange and its tensors. Rows of numbers so small that every sum is exact.
class Moe {
 public:
  Moe(Rank& rank, uint32_t number, uint32_t ranks, bool is_exact = true, bool is_in_windows = false)
      : rank_(rank), number_(number), ranks_(ranks), options_(make_options(is_exact, is_in_windows)) {
    check(verbena_moe_create(rank.context().handle(), verbena_team_world(rank.context().handle()), &options_,
                             &moe_));
    check(verbena_moe_get_layout(moe_, &layout_));
    rows_.resize(kMaxTokens * kHidden);
    output_ = allocate<uint16_t>(ranks * kMaxTokens * kHidden);
    scales_.resize(kMaxTokens);
    output_scales_ = allocate<uint32_t>(ranks * kMaxTokens);
    expert_rows_.resize(ranks * kMaxTokens * kTopK * kHidden);
    combined_.resize(kMaxTokens * kHidden);
    handle_ = allocate<char>(layout_.bytes);
    ids_.resize(kMaxTokens * kTopK);
    weights_.resize(kMaxTokens * kTopK);
  }
  ~Moe() {
    static_cast<void>(verbena_moe_destroy(moe_));
    for (verbena_window* const window : windows_) static_cast<void>(verbena_window_free(window));
  }
  Moe(const Moe&) = delete;
  Moe& operator=(const Moe&) = delete;

  verbena_moe* handle() { return moe_; }
  bool is_in_windows() const { return options_.in_windows != 0; }
  bool is_exact() const { return options_.exact != 0; }
  // Ranks that take part in calls, a bit each.
  verbena_result set_mask(uint32_t living) {
    const verbena_result result = verbena_moe_set_mask(moe_, living);
    if (result == VERBENA_SUCCESS) living_ = living;
    return result;
  }
  bool is_living(int64_t expert) const {
    return expert >= 0 && expert < kExperts && (living_ >> (expert / (kExperts / ranks_)) & 1) != 0;
  }
  // Other ids for each step, the same on whatever rank asks; -1 and ids out of range among them.
  static int64_t find_id(uint32_t step, uint32_t rank, uint32_t token, uint32_t k) {
    const uint32_t mixed = (step * 7919 + rank * 104729 + token * 1299709 + k * 15485863) * 2654435761U >> 7;
    return static_cast<int64_t>(mixed % (kExperts + 2)) - 1;
  }
  uint32_t tokens() const { return number_ == 1 ? 0 : kMaxTokens - number_; }
  static float row_value(uint32_t rank, uint32_t token) { return static_cast<float>(rank * 10 + token + 1); }
  static float weight(uint32_t k) { return static_cast<float>(k + 1); }

  void draw(uint32_t step) {
    for (uint32_t token = 0; token < kMaxTokens; ++token) {
      scales_[token] = 1000 * number_ + token;
      for (uint32_t i = 0; i < kHidden; ++i)
        rows_[token * kHidden + i] = to_bfloat16(row_value(number_, token));
      for (uint32_t k = 0; k < kTopK; ++k) {
        ids_[token * kTopK + k] = find_id(step, number_, token, k);
        weights_[token * kTopK + k] = weight(k);
      }
    }
    std::memset(combined_.data(), 0x55, combined_.size() * 2);
  }
  verbena_moe_dispatch_arguments dispatch_arguments() {
    verbena_moe_dispatch_arguments arguments{};
    arguments.tokens = tokens();
    arguments.row_bytes = 2 * kHidden;
    arguments.rows = rows_.data();
    arguments.scale_bytes = 4;
    arguments.scales = scales_.data();
    arguments.id_bits = 64;
    arguments.ids = ids_.data();
    arguments.weights = weights_.data();
    arguments.output = output_;
    arguments.output_scales = output_scales_;
    arguments.handle = handle_;
    return arguments;
  }
  verbena_moe_combine_arguments combine_arguments(verbena_moe_order order) {
    verbena_moe_combine_arguments arguments{};
    arguments.tokens = tokens();
    arguments.order = order;
    arguments.type = VERBENA_OPS_BFLOAT16;
    arguments.rows = order == VERBENA_MOE_ROWS ? output_ : expert_rows_.data();
    arguments.handle = handle_;
    arguments.output = combined_.data();
    return arguments;
  }
  verbena_result dispatch(void* stream = nullptr) {
    const auto arguments = dispatch_arguments();
    return verbena_moe_dispatch(moe_, &arguments, stream);
  }
  verbena_result combine(verbena_moe_order order, void* stream = nullptr) {
    const auto arguments = combine_arguments(order);
    return verbena_moe_combine(moe_, &arguments, stream);
  }
  template <typename T>
  const T* find(size_t offset) const {
    return reinterpret_cast<const T*>(handle_ + offset);
  }
  // Each expert gives its number plus one.
  void run_experts() {
    const auto* const ids = find<int32_t>(layout_.ids);
    for (uint32_t row = 0; row < ranks_ * kMaxTokens; ++row)
      for (uint32_t k = 0; k < kTopK; ++k)
        for (uint32_t i = 0; i < kHidden; ++i) {
          const int32_t id = ids[row * kTopK + k];
          // Slots of other ranks are not read.
          expert_rows_[(row * kTopK + k) * kHidden + i] =
              id < 0 ? 0x7fff
                     : to_bfloat16(
                           static_cast<float>(static_cast<uint32_t>(id) + number_ * kExperts / ranks_ + 1));
        }
  }
  bool goes_to(uint32_t step, uint32_t source, uint32_t token, uint32_t rank) const {
    for (uint32_t k = 0; k < kTopK; ++k) {
      const int64_t id = find_id(step, source, token, k);
      if (is_living(id) && static_cast<uint32_t>(id) / (kExperts / ranks_) == rank) return true;
    }
    return false;
  }
  std::string check_received(uint32_t step) const {
    for (uint32_t source = 0; source < ranks_; ++source) {
      uint32_t count = 0;
      const bool has_none = source == 1 || (living_ >> source & 1) == 0;
      for (uint32_t token = 0; token < (has_none ? 0 : kMaxTokens - source); ++token) {
        if (!goes_to(step, source, token, number_)) continue;
        const uint32_t row = source * kMaxTokens + count++;
        if (find<int32_t>(layout_.sources)[row] != static_cast<int32_t>(token)) return "another token";
        if (output_scales_[row] != 1000 * source + token) return "another scale";
        if (output_[row * kHidden + kHidden - 1] != to_bfloat16(row_value(source, token)))
          return "another row";
      }
      if (find<int32_t>(layout_.counts)[source] != static_cast<int32_t>(count)) return "another count";
      for (; count < kMaxTokens; ++count)
        if (find<int32_t>(layout_.ids)[(source * kMaxTokens + count) * kTopK] != -1) return "an id behind";
    }
    return "";
  }
  std::string check_combined(uint32_t step, verbena_moe_order order) const {
    for (uint32_t token = 0; token < tokens(); ++token) {
      float want = 0;
      for (uint32_t rank = 0; rank < ranks_ && order == VERBENA_MOE_ROWS; ++rank)
        want += goes_to(step, number_, token, rank) ? row_value(number_, token) : 0;
      for (uint32_t k = 0; k < kTopK && order != VERBENA_MOE_ROWS; ++k) {
        const int64_t id = find_id(step, number_, token, k);
        if (is_living(id)) want += weight(k) * static_cast<float>(id + 1);
      }
      for (uint32_t i = 0; i < kHidden; ++i)
        if (combined_[token * kHidden + i] != to_bfloat16(want))
          return "token " + std::to_string(token) + ": another sum";
    }
    return "";
  }
  // Counts the rows of groups that begin at a multiple of `alignment`.
  uint32_t count_groups(uint32_t alignment) const {
    std::vector<uint32_t> counts(kExperts / ranks_);
    const auto* const ids = find<int32_t>(layout_.ids);
    for (uint32_t row = 0; row < ranks_ * kMaxTokens; ++row)
      for (uint32_t k = 0; k < kTopK; ++k) {
        const int32_t id = ids[row * kTopK + k];
        const bool is_first =
            std::find(ids + row * kTopK, ids + row * kTopK + k, id) == ids + row * kTopK + k;
        if (id >= 0 && is_first) ++counts[static_cast<size_t>(id)];
      }
    uint32_t rows = 0;
    for (const uint32_t count : counts) rows += (count + alignment - 1) / alignment * alignment;
    return rows;
  }
  std::string check_groups(uint32_t step, const std::vector<uint16_t>& output,
                           const std::vector<uint32_t>& scales, const std::vector<int32_t>& sources,
                           const std::vector<int32_t>& experts) const {
    uint32_t placed = 0;
    for (size_t at = 0; at < sources.size(); ++at) {
      if (sources[at] < 0) continue;
      const auto row = static_cast<uint32_t>(sources[at]), source = row / kMaxTokens;
      const auto token = static_cast<uint32_t>(find<int32_t>(layout_.sources)[row]);
      if (scales[at] != 1000 * source + token) return "another scale";
      if (output[at * kHidden] != to_bfloat16(row_value(source, token))) return "another row";
      bool is_one = false;
      for (uint32_t k = 0; k < kTopK; ++k)
        if (find<int32_t>(layout_.places)[row * kTopK + k] == static_cast<int32_t>(at))
          is_one = find_id(step, source, token, k) ==
                   static_cast<int64_t>(number_ * kExperts / ranks_) + experts[at];
      if (!is_one) return "a row of another expert";
      ++placed;
    }
    uint32_t counted = 0;
    for (uint32_t expert = 0; expert < kExperts / ranks_; ++expert)
      counted += static_cast<uint32_t>(find<int32_t>(layout_.expert_counts)[expert]);
    return placed != counted || placed == 0 ? "another count" : "";
  }
  void synchronize() { rank_.synchronize(); }
  const std::vector<uint16_t>& combined() const { return combined_; }
  const int32_t* counts() const { return find<int32_t>(layout_.counts); }
  const int32_t* received_ids() const { return find<int32_t>(layout_.ids); }

 private:
  struct alignas(16) Vector {
    uint64_t words[2];
  };
  // Memory that a dispatch writes: in a window, if the exchange needs that.
  template <typename T>
  T* allocate(size_t count) {
    if (is_in_windows()) {
      verbena_window* window = nullptr;
      check(verbena_window_allocate(rank_.context().handle(), count * sizeof(T), &window));
      windows_.push_back(window);
      return static_cast<T*>(verbena_window_address(window));
    }
    memory_.emplace_back(count * sizeof(T) / sizeof(Vector) + 1);
    return reinterpret_cast<T*>(memory_.back().data());
  }
  Rank& rank_;
  const uint32_t number_, ranks_;
  const verbena_moe_options options_;
  verbena_moe* moe_ = nullptr;
  verbena_moe_layout layout_{};
  uint32_t living_ = ~0U;
  std::vector<uint16_t> rows_, expert_rows_, combined_;  // new gives multiples of 16
  std::vector<uint32_t> scales_;
  std::vector<int64_t> ids_;
  std::vector<float> weights_;
  std::vector<std::vector<Vector>> memory_;
  std::vector<verbena_window*> windows_;
  uint16_t* output_ = nullptr;
  uint32_t* output_scales_ = nullptr;
  char* handle_ = nullptr;
};

constexpr verbena_moe_order kOrders[] = {VERBENA_MOE_ROWS, VERBENA_MOE_REDUCED, VERBENA_MOE_EXACT};

std::string run_steps(Moe& moe, uint32_t first) {
  for (uint32_t step = first; step < first + 6; ++step) {
    const verbena_moe_order order =
        moe.is_in_windows() ? VERBENA_MOE_ROWS : kOrders[step % (moe.is_exact() ? 3 : 2)];
    moe.draw(step);
    if (const std::string wrong = say("dispatch", moe.dispatch()); !wrong.empty()) return wrong;
    moe.synchronize();
    if (const std::string wrong = moe.check_received(step); !wrong.empty()) return wrong;
    moe.run_experts();
    if (const std::string wrong = say("combine", moe.combine(order)); !wrong.empty()) return wrong;
    moe.synchronize();
    if (const std::string wrong = moe.check_combined(step, order); !wrong.empty())
      return "step " + std::to_string(step) + ": " + wrong;
  }
  return "";
}

TEST(Moe, TokensGoThereAndBack) {
  for (const size_t ranks : {2, 3, 4}) {
    expect_run(std::vector<int>(ranks, 0), [&](Rank& rank, uint32_t number) {
      Moe moe(rank, number, static_cast<uint32_t>(ranks));
      return run_steps(moe, 0);
    });
  }
}

// Ids are read when the graph runs.
std::string replay(Rank& rank, uint32_t number, uint32_t ranks, bool is_exact) {
  Moe moe(rank, number, ranks, is_exact);
  void *stream = nullptr, *graph = nullptr, *exec = nullptr;
  find_in_driver<int (*)(void**, unsigned)>("cuStreamCreate")(&stream, 0);
  find_in_driver<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream, 0);
  check(moe.dispatch(stream));
  check(moe.combine(VERBENA_MOE_ROWS, stream));
  find_in_driver<int (*)(void*, void**)>("cuStreamEndCapture")(stream, &graph);
  find_in_driver<int (*)(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(&exec, graph, 0);
  for (uint32_t step = 0; step < 8; ++step) {
    moe.draw(step);
    find_in_driver<int (*)(void*, void*)>("cuGraphLaunch")(exec, stream);
    find_in_driver<int (*)(void*)>("cuStreamSynchronize")(stream);
    std::string wrong = moe.check_received(step);
    if (wrong.empty()) wrong = moe.check_combined(step, VERBENA_MOE_ROWS);
    if (!wrong.empty()) return "replay " + std::to_string(step) + ": " + wrong;
  }
  return "";
}
// Rows that other ranks store and load in windows.
TEST(Moe, RowsInWindows) {
  for (const size_t ranks : {1, 2, 4})
    expect_run(std::vector<int>(ranks), [&](Rank& rank, uint32_t number) -> std::string {
      Moe moe(rank, number, static_cast<uint32_t>(ranks), false, true);
      return run_steps(moe, 5);
    });
}
// What an exchange in windows refuses on the host; it works afterwards.
TEST(Moe, RowsOutsideWindowsAreRefused) {
  expect_run({0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    Moe moe(rank, number, 2, false, true);
    moe.draw(1);
    std::vector<char> outside(1 << 16);
    const auto expect_invalid = [](const char* text, verbena_result result) -> std::string {
      const std::string said = verbena_last_error();
      const bool is_refused = result == VERBENA_INVALID_ARGUMENT && said.find(text) != std::string::npos;
      return is_refused ? "" : std::string(text) + ": " + said;
    };
    const auto expect_refused = [&](const char* text, const auto& change) {
      auto arguments = moe.dispatch_arguments();
      change(arguments);
      return expect_invalid(text, verbena_moe_dispatch(moe.handle(), &arguments, nullptr));
    };
    std::string wrong =
        expect_refused("output is not in a window", [&](auto& call) { call.output = outside.data(); });
    if (wrong.empty())
      wrong = expect_refused("output_scales is not in a window",
                             [&](auto& call) { call.output_scales = outside.data(); });
    if (wrong.empty())
      wrong = expect_refused("handle is not in a window", [&](auto& call) { call.handle = outside.data(); });
    if (wrong.empty())
      wrong =
          expect_refused("takes only VERBENA_MOE_BY_RANK", [](auto& call) { call.phase = VERBENA_MOE_SEND; });
    if (wrong.empty())
      wrong = expect_refused("takes only VERBENA_MOE_BY_RANK",
                             [](auto& call) { call.grouping = VERBENA_MOE_BY_EXPERT; });
    if (!wrong.empty()) return wrong;
    const auto expect_combine_refused = [&](const char* text, const auto& change) {
      auto arguments = moe.combine_arguments(VERBENA_MOE_ROWS);
      change(arguments);
      return expect_invalid(text, verbena_moe_combine(moe.handle(), &arguments, nullptr));
    };
    wrong = expect_combine_refused("takes only VERBENA_MOE_ROWS",
                                   [](auto& call) { call.order = VERBENA_MOE_REDUCED; });
    if (wrong.empty())
      wrong = expect_combine_refused("takes only VERBENA_MOE_ROWS",
                                     [](auto& call) { call.grouping = VERBENA_MOE_BY_EXPERT; });
    if (wrong.empty())
      wrong =
          expect_combine_refused("rows is not in a window", [&](auto& call) { call.rows = outside.data(); });
    if (!wrong.empty()) return wrong;
    return run_steps(moe, 1);
  });
}

TEST(Moe, GraphIsReplayedWithOtherIds) {
  expect_run({0, 0}, [](Rank& rank, uint32_t number) { return replay(rank, number, 2, true); });
}

// Ranks on several hosts, whose numbers need not be neighbours.
TEST(MoeAcrossHosts, TokensGoThereAndBack) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 2}}) {
    const auto ranks = static_cast<uint32_t>(hosts.size());
    expect_run(hosts, [&](Rank& rank, uint32_t number) {
      Moe moe(rank, number, ranks, false);
      return run_steps(moe, 0);
    });
  }
}

// A rail fails again and again: before a request is carried out, and after it. Each failure takes a queue
// pair, and two failures of both rails could take all of a lane.
TEST(MoeAcrossHosts, RailsThatFailLoseNothing) {
  const base::ScopedEnvironment environment(
      {{"SOFTVERBS_DEVICES", "2"},
       {"SOFTVERBS_FAULTS",
        "fail rail=0 opcode=RDMA_WRITE status=RETRY_EXC nth=9 work=done;"
        "fail rail=0 opcode=RDMA_WRITE status=RETRY_EXC nth=20 work=none;"
        "fail rail=0 opcode=RDMA_WRITE status=RETRY_EXC nth=60 work=done"}});
  expect_run({0, 0, 1, 1}, [](Rank& rank, uint32_t number) {
    Moe moe(rank, number, 4, false);
    std::string wrong;
    for (uint32_t round = 0; round < 5 && wrong.empty(); ++round) wrong = run_steps(moe, 6 * round);
    return wrong;
  });
}

TEST(MoeAcrossHosts, GraphIsReplayedWithOtherIds) {
  expect_run({0, 0, 1, 1}, [](Rank& rank, uint32_t number) { return replay(rank, number, 4, false); });
}

// Outputs say that nothing came, the next call names the rank, and after a reset all is well.
void expect_late_rank_is_named(const std::vector<int>& hosts, bool has_exact) {
  const base::ScopedEnvironment environment({{"VERBENA_SYMM_TIMEOUT_MS", "4000"}});
  expect_run(hosts, [&](Rank& rank, uint32_t number) -> std::string {
    Moe moe(rank, number, static_cast<uint32_t>(hosts.size()), has_exact);
    if (std::string wrong = run_steps(moe, 0); !wrong.empty()) return wrong;
    if (number != 2) {
      moe.draw(3);
      if (moe.dispatch() != VERBENA_SUCCESS) return "the call itself";
      moe.synchronize();
      if (moe.counts()[0] != 0 || moe.received_ids()[0] != -1) return "outputs of a failed call";
      if (moe.combine(VERBENA_MOE_ROWS) != VERBENA_TIMEOUT) return "no time-out";
      const std::string error = verbena_last_error();
      if (error.find("rank 2") == std::string::npos) return "not named: " + error;
      char text[256];
      if (verbena_moe_get_error(moe.handle(), text, sizeof(text)) != VERBENA_TIMEOUT) return "no error";
    }
    check(verbena_moe_reset(moe.handle()));
    return run_steps(moe, 10);
  });
}
TEST(Moe, ALateRankIsNamedAndResetGoesOn) {
  expect_late_rank_is_named({0, 0, 0}, true);
}
TEST(MoeAcrossHosts, ALateRankIsNamedAndResetGoesOn) {
  expect_late_rank_is_named({0, 0, 1, 1}, false);
}

// A host, or the ranks of one place on all hosts; nothing else.
TEST(MoeAcrossHosts, RanksAreLeftOut) {
  expect_run({0, 0, 1, 1}, [](Rank& rank, uint32_t number) -> std::string {
    Moe moe(rank, number, 4, false);
    for (const uint32_t living : {0b0011U, 0b1010U}) {
      check(verbena_moe_reset(moe.handle()));
      check(moe.set_mask(15));
      for (const uint32_t part : {0b1110U, 0b0111U, 0b1001U})
        if ((part >> number & 1) != 0 && moe.set_mask(part) != VERBENA_INVALID_ARGUMENT)
          return "a part of a host is left out";
      if ((living >> number & 1) == 0) continue;
      check(moe.set_mask(living));
      if (std::string wrong = run_steps(moe, living); !wrong.empty()) return wrong;
    }
    return "";
  });
}

TEST(MoeAcrossHosts, RefusesWhatThereIsNot) {
  const auto create = [](const std::vector<int>& hosts, const verbena_moe_options& options) {
    return run(hosts, [&](Rank& rank, uint32_t) -> std::string {
      verbena_moe* moe = nullptr;
      verbena_context* const context = rank.context().handle();
      const verbena_result result =
          verbena_moe_create(rank.context().handle(), verbena_team_world(context), &options, &moe);
      return result == VERBENA_INVALID_USAGE ? verbena_last_error() : "is not refused";
    });
  };
  using testing::HasSubstr, testing::Not;
  const std::string uneven = create({0, 0, 1}, make_options(false));
  EXPECT_THAT(uneven, HasSubstr("the same number of ranks on each host. Of 3 ranks on 2 hosts"));
  EXPECT_THAT(uneven, Not(HasSubstr("is not refused")));
  const std::string windows = create({0, 1}, make_options(false, true));
  EXPECT_THAT(windows, HasSubstr("in_windows works only if all ranks of the team are on one host"));
  const std::string exact = create({0, 1}, make_options(true));
  EXPECT_THAT(exact,
              HasSubstr("verbena_moe_options::exact works only if all ranks of the team are on one host"));
  EXPECT_THAT(exact, Not(HasSubstr("is not refused")));
}

// Two ranks go on without the third, until a reset.
TEST(Moe, ARankIsLeftOut) {
  expect_run({0, 0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    Moe moe(rank, number, 3);
    if (std::string wrong = run_steps(moe, 0); !wrong.empty()) return wrong;
    if (number != 2) {
      if (moe.set_mask(15) != VERBENA_INVALID_ARGUMENT) return "a rank that is not there";
      if (moe.set_mask(7 & ~(1U << number)) != VERBENA_INVALID_ARGUMENT) return "without itself";
      auto arguments = moe.dispatch_arguments();
      arguments.phase = VERBENA_MOE_SEND;
      check(verbena_moe_dispatch(moe.handle(), &arguments, nullptr));
      if (moe.set_mask(3) != VERBENA_INVALID_USAGE) return "between two phases";
    }
    // Rank 2 has not come: no time-out is needed for it to be left out.
    check(verbena_moe_reset(moe.handle()));
    if (number != 2) {
      check(moe.set_mask(3));
      if (moe.set_mask(7) != VERBENA_SUCCESS) return "no call has left it out";
      check(moe.set_mask(3));
      if (std::string wrong = run_steps(moe, 10); !wrong.empty()) return wrong;
      uint64_t living = 0;
      if (verbena_moe_get_mask(moe.handle(), &living) != VERBENA_SUCCESS || living != 3)
        return "another mask";
      if (moe.set_mask(7) != VERBENA_INVALID_USAGE) return "a rank that was left out";
    }
    check(verbena_moe_reset(moe.handle()));
    check(moe.set_mask(7));
    return run_steps(moe, 20);
  });
}

// A cast on the way, in a call of two kernels: rows of one number become its largest byte, 448, and a scale.
TEST(Moe, RowsAreCastInTwoPhases) {
  expect_run({0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    Moe moe(rank, number, 2);
    std::vector<uint16_t> rows(kMaxTokens * 32);
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = to_bfloat16(Moe::row_value(number, static_cast<uint32_t>(i / 32)));
    std::vector<float> scales(2 * kMaxTokens);
    std::vector<uint8_t> bytes(2 * kMaxTokens * 32);
    moe.draw(4);
    auto arguments = moe.dispatch_arguments();
    arguments.rows = rows.data();
    arguments.row_bytes = 64;
    arguments.scale_bytes = 0;
    arguments.scales = nullptr;
    arguments.quantisation = VERBENA_OPS_FP8_BLOCK;
    arguments.type = VERBENA_OPS_BFLOAT16;
    arguments.output = bytes.data();
    arguments.output_scales = scales.data();
    for (const verbena_moe_phase phase : {VERBENA_MOE_SEND, VERBENA_MOE_RECEIVE}) {
      arguments.phase = phase;
      check(verbena_moe_dispatch(moe.handle(), &arguments, nullptr));
    }
    moe.synchronize();
    uint32_t row = 0;  // of rank 0, which all have tokens from
    for (uint32_t token = 0; token < kMaxTokens; ++token) {
      if (!moe.goes_to(4, 0, token, number)) continue;
      if (scales[row] != Moe::row_value(0, token) / 448) return "another scale";
      for (uint32_t i = 0; i < 32; ++i)
        if (bytes[row * 32 + i] != 0x7e) return "another byte";
      ++row;
    }
    if (row == 0 || moe.counts()[0] != static_cast<int32_t>(row)) return "another count";
    return run_steps(moe, 0);
  });
}

// Rows one group behind the other, counted by the caller before they are placed; too few of them fail the
// call.
TEST(Moe, GroupsOfRowsThatTheCallerCounts) {
  expect_run({0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    constexpr uint32_t kAlignment = 4;
    Moe moe(rank, number, 2);
    const verbena_moe_options options = make_options();
    const size_t max_rows = verbena_moe_max_rows(&options, 2, VERBENA_MOE_RAGGED, kAlignment);
    if (max_rows != 2 * kMaxTokens * kTopK + (kExperts / 2) * (kAlignment - 1)) return "most rows";
    const auto place = [&](uint32_t missing) -> std::string {
      moe.draw(3);
      auto arguments = moe.dispatch_arguments();
      arguments.grouping = VERBENA_MOE_RAGGED;
      arguments.alignment = kAlignment;
      arguments.output = nullptr;
      arguments.output_scales = nullptr;
      for (const verbena_moe_phase phase : {VERBENA_MOE_SEND, VERBENA_MOE_RECEIVE_IDS}) {
        arguments.phase = phase;
        check(verbena_moe_dispatch(moe.handle(), &arguments, nullptr));
      }
      if (verbena_moe_dispatch(moe.handle(), &arguments, nullptr) != VERBENA_INVALID_USAGE)
        return "ids received twice";
      moe.synchronize();
      const uint32_t rows = moe.count_groups(kAlignment);
      std::vector<uint16_t> output(size_t{rows} * kHidden);
      std::vector<uint32_t> scales(rows);
      std::vector<int32_t> sources(rows), experts(rows);
      arguments.phase = VERBENA_MOE_RECEIVE;
      arguments.output = output.data();
      arguments.output_scales = scales.data();
      arguments.output_rows = rows - missing;
      arguments.row_sources = sources.data();
      arguments.row_experts = experts.data();
      check(verbena_moe_dispatch(moe.handle(), &arguments, nullptr));
      moe.synchronize();
      return missing != 0 ? "" : moe.check_groups(3, output, scales, sources, experts);
    };
    if (std::string wrong = place(0); !wrong.empty()) return wrong;
    try {
      (void)place(1);
    } catch (const Failure&) {
      // The other rank's call failed first, before this rank's call.
    }
    if (moe.dispatch() == VERBENA_SUCCESS) return "too few rows";
    check(verbena_moe_reset(moe.handle()));
    return run_steps(moe, 0);
  });
}

TEST(Moe, RefusesWhatCannotBe) {
  expect_run({0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    verbena_context* const context = rank.context().handle();
    const verbena_team* const team = verbena_team_world(context);
    verbena_moe* other = nullptr;
    verbena_moe_options options = make_options();
    options.experts = 7;
    if (verbena_moe_create(context, team, &options, &other) != VERBENA_INVALID_ARGUMENT)
      return "experts that are no multiple of the ranks";
    options = make_options();
    options.max_tokens += number;
    if (verbena_moe_create(context, team, &options, &other) != VERBENA_INVALID_USAGE)
      return "other options on each rank";
    Moe moe(rank, number, 2);
    const auto is_refused = [&](const auto& change) {
      auto arguments = moe.dispatch_arguments();
      change(arguments);
      return verbena_moe_dispatch(moe.handle(), &arguments, nullptr) == VERBENA_INVALID_ARGUMENT;
    };
    if (!is_refused([](auto& one) { one.tokens = kMaxTokens + 1; })) return "tokens";
    if (!is_refused([](auto& one) { one.row_bytes = 8; })) return "row_bytes";
    if (!is_refused([](auto& one) { one.row_bytes += 16; })) return "long rows";
    if (!is_refused([](auto& one) { one.scale_bytes = 5; })) return "scale_bytes";
    if (!is_refused([](auto& one) { one.id_bits = 16; })) return "id_bits";
    if (!is_refused([](auto& one) { one.output = nullptr; })) return "output";
    if (!is_refused([](auto& one) {
          one.tokens = 1;
          one.ids = static_cast<const char*>(one.ids) + 4;
        }))
      return "misaligned ids";
    if (!is_refused([](auto& one) {
          one.tokens = 1;
          one.weights = reinterpret_cast<const float*>(reinterpret_cast<const char*>(one.weights) + 2);
        }))
      return "misaligned weights";
    if (!is_refused([](auto& one) { one.blocks = 3; })) return "blocks";
    if (!is_refused([](auto& one) { one.quantisation = VERBENA_OPS_FP8_BLOCK; }))
      return "scales beside a cast";
    if (!is_refused([](auto& one) { one.quantisation = VERBENA_OPS_INT8_TOKEN; })) return "quantisation";
    if (!is_refused([](auto& one) { one.grouping = static_cast<verbena_moe_grouping>(3); }))
      return "grouping";
    if (!is_refused([](auto& one) { one.column_scales = 1; })) return "columns of the caller's scales";
    if (!is_refused([](auto& one) { one.phase = VERBENA_MOE_RECEIVE_IDS; })) return "a phase of groups";
    // Lengths of groups would not have 32 bits, and rows be stored outside the output.
    if (!is_refused([](auto& one) {
          one.grouping = VERBENA_MOE_RAGGED;
          one.output_rows = 8;
          one.alignment = UINT32_MAX;
        }))
      return "alignment";
    options = make_options();
    if (verbena_moe_max_rows(&options, 2, VERBENA_MOE_RAGGED, UINT32_MAX) != 0) return "rows of an alignment";
    if (!is_refused([](auto& one) {
          one.quantisation = VERBENA_OPS_FP8_BLOCK;
          one.type = VERBENA_OPS_BFLOAT16;
          one.scale_bytes = 0;
          one.row_bytes = 32;
          one.output_scales = static_cast<char*>(one.output_scales) + 2;
        }))
      return "misaligned scales of a cast";
    auto receive = moe.dispatch_arguments();
    receive.phase = VERBENA_MOE_RECEIVE;
    if (verbena_moe_dispatch(moe.handle(), &receive, nullptr) != VERBENA_INVALID_USAGE)
      return "a phase out of turn";
    auto combine = moe.combine_arguments(VERBENA_MOE_ROWS);
    combine.type = VERBENA_OPS_FLOAT32;
    if (verbena_moe_combine(moe.handle(), &combine, nullptr) != VERBENA_INVALID_ARGUMENT) return "type";
    return run_steps(moe, 0);
  });
}

TEST(Moe, WorkspaceIsWhatTheFormulaSays) {
  verbena_moe_options options{};
  options.experts = 256;
  options.max_tokens = 128;
  options.top_k = 8;
  options.hidden = 7168;
  options.max_row_bytes = 7168;
  options.max_scale_bytes = 224;
  options.blocks = 128;
  const size_t headers = 8 * (2 + 6), rows = 8 * 128 * (7168 / 16 + 14 + 4 + 4),
               combined = 8 + 128 * 8 * 7168 / 8;
  EXPECT_EQ(verbena_moe_workspace_bytes(&options, 8), 2 * (headers + rows + combined) * 24);
  EXPECT_LE(verbena_moe_workspace_bytes(&options, 8), 70'000'000U);
  EXPECT_EQ(verbena_moe_workspace_bytes(&options, 7), 0U) << "experts are not a multiple";
  options.in_windows = 1;
  options.max_tokens = 4096;  // 128 entries of masks and 3 offers from each rank, and a word for each block
  EXPECT_EQ(verbena_moe_workspace_bytes(&options, 8),
            (2 * (2 * 8 * (131 + 1) / 2 + 8) * 24 + 127) / 128 * 128 + 4 * 8 * 256 * 8);
  options.in_windows = 0;
  options.max_tokens = 128;
  // On two hosts: four sums of a token within each, and chunks of 8 tokens.
  const size_t sums = 128 * 4 * 7168 / 8, dispatched = 467 * 128, returned = 897 * 128;
  EXPECT_EQ(verbena_moe_workspace_bytes_across(&options, 8, 2),
            2 * (headers + rows + 8 + 2 * sums) * 24 + 2 * 16 * (2 * dispatched + 2 * returned + 16));
  EXPECT_EQ(verbena_moe_workspace_bytes_across(&options, 8, 1), verbena_moe_workspace_bytes(&options, 8));
  EXPECT_EQ(verbena_moe_workspace_bytes_across(&options, 8, 3), 0U) << "not the same number on each host";
  EXPECT_EQ(verbena_moe_workspace_bytes_across(&options, 16, 16), 0U) << "too many hosts";
  options.experts = 1025;  // on one rank: too many to group rows by
  const size_t alone = 2 + 128 * (7168 / 16 + 14 + 4) + 1 + 128 * 7168 / 8;
  EXPECT_EQ(verbena_moe_workspace_bytes(&options, 1), 2 * alone * 24);
}

}  // namespace
}  // namespace verbena
