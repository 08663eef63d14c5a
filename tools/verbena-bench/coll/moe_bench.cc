#include "verbena-bench/coll/moe_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/table.h"

namespace verbena::tools::coll {
namespace {

constexpr uint32_t kSets = 8;  // of ids, which the calls of a graph use in turn
constexpr uint32_t kEagerRounds = 16;
constexpr int kGivenLines = 4;

uint16_t round_to_bfloat16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float widen_bfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// An exchange of one number of tokens, its tensors, and what all ranks' are.
class MoeBench {
 public:
  MoeBench(const MoeGround& ground, uint32_t tokens);
  ~MoeBench() {
    ground_.library.verbena_moe_destroy(moe_);
    for (verbena_window* const window : windows_) verbena_window_free(window);
  }
  MoeBench(const MoeBench&) = delete;
  MoeBench& operator=(const MoeBench&) = delete;

  // A dispatch and a combine with other routing and other numbers of tokens on each rank; wrong elements.
  uint64_t check(uint64_t seed);
  // The last pair of a graph with other routing in each replay.
  uint64_t check_replay(uint64_t seed);
  std::vector<double> measure();
  size_t workspace_bytes() const {
    return ground_.library.verbena_moe_workspace_bytes_across(&options_, plan_.count_ranks, plan_.hosts);
  }

 private:
  using Ids = std::vector<int64_t>;  // [tokens][top_k]

  uint32_t ranks() const { return plan_.count_ranks; }
  uint32_t row_bytes() const { return plan_.moe_row_bytes == 0 ? combined_bytes() : plan_.moe_row_bytes; }
  uint32_t combined_bytes() const { return static_cast<uint32_t>(2 * plan_.hidden); }
  Ids draw_ids(uint64_t seed, uint32_t rank) const;
  uint32_t draw_tokens(uint64_t seed, uint32_t rank) const;
  // Of the row of a rank, or of its scales, or of what its experts give.
  static uint32_t make_word(uint32_t rank, uint32_t token, uint32_t word) {
    return rank * 0x9e3779b1U + token * 0x85ebca77U + word * 0xc2b2ae3dU;
  }
  static float make_expert_value(uint32_t rank, uint32_t number, uint32_t element) {
    return static_cast<float>((rank * 7 + number * 3 + element) % 61);
  }
  size_t output_rows() const {
    return ground_.library.verbena_moe_max_rows(&options_, ranks(), grouping_, plan_.moe_alignment);
  }
  bool is_grouped() const { return grouping_ != VERBENA_MOE_BY_RANK; }
  void allocate(size_t rows);               // of the output
  CUdeviceptr allocate_rows(size_t bytes);  // in a window, with --windows
  void write_ids(uint64_t seed, uint32_t sets);
  void dispatch(uint32_t set, uint32_t tokens);
  void combine(uint32_t tokens);
  bool is_at(int64_t id, uint32_t rank) const {
    return id >= 0 && id / (plan_.moe_experts / ranks()) == rank;
  }
  bool goes_to(const Ids& ids, uint32_t token, uint32_t rank) const {
    for (uint32_t k = 0; k < plan_.moe_top_k; ++k)
      if (is_at(ids[size_t{token} * plan_.moe_top_k + k], rank)) return true;
    return false;
  }
  uint64_t count_wrong(const std::vector<Ids>& ids, const std::vector<uint32_t>& tokens);
  int32_t read_word(size_t offset, size_t index) const {
    int32_t value = 0;
    std::memcpy(&value, got_handle_.data() + offset + index * sizeof(value), sizeof(value));
    return value;
  }
  uint64_t count_wrong_groups(const std::vector<Ids>& ids, const std::vector<uint32_t>& tokens);
  uint64_t count_wrong_words(size_t row, uint32_t source, uint32_t token) const;
  uint64_t count_wrong_rows(uint32_t source, const Ids& ids, uint32_t tokens);
  float add_experts(const Ids& ids, uint32_t token, uint32_t rank, uint32_t number, uint32_t i) const;
  uint64_t count_wrong_sums(const Ids& ids, uint32_t tokens);
  void tell_wrong(const std::string& what) {
    if (told_++ < kGivenLines) std::fprintf(stderr, "rank %u: moe: %s\n", plan_.rank, what.c_str());
  }

  const MoeGround& ground_;
  const CollPlan& plan_;
  Gpu& gpu_;
  const uint32_t tokens_;
  const verbena_moe_grouping grouping_;
  verbena_moe_options options_{};
  verbena_moe* moe_ = nullptr;
  verbena_moe_layout layout_{};
  CUdeviceptr rows_ = 0, scales_ = 0, ids_ = 0, output_ = 0, output_scales_ = 0, handle_ = 0;
  CUdeviceptr expert_rows_ = 0, combined_ = 0;
  std::vector<verbena_window*> windows_;
  std::vector<uint32_t> got_rows_, got_scales_;
  std::vector<char> got_handle_;
  std::vector<uint16_t> got_combined_;
  std::unique_ptr<Graph> replay_;
  int told_ = 0;
};

MoeBench::MoeBench(const MoeGround& ground, uint32_t tokens)
    : ground_(ground),
      plan_(ground.plan),
      gpu_(ground.gpu),
      tokens_(tokens),
      grouping_(plan_.moe_grouping == "rank"     ? VERBENA_MOE_BY_RANK
                : plan_.moe_grouping == "expert" ? VERBENA_MOE_BY_EXPERT
                                                 : VERBENA_MOE_RAGGED) {
  options_.experts = plan_.moe_experts;
  options_.max_tokens = std::max(tokens, plan_.moe_max_tokens);
  options_.top_k = plan_.moe_top_k;
  options_.hidden = static_cast<uint32_t>(plan_.hidden);
  options_.max_row_bytes = row_bytes();
  options_.max_scale_bytes = plan_.moe_scale_bytes;
  options_.blocks = plan_.blocks;
  options_.programmatic_launch = plan_.pdl ? 1 : 0;
  options_.in_windows = plan_.moe_windows ? 1 : 0;
  coll::check(ground_.library.verbena_moe_create(ground_.context, ground_.team, &options_, &moe_),
              "verbena_moe_create");
  coll::check(ground_.library.verbena_moe_get_layout(moe_, &layout_), "verbena_moe_get_layout");
  const size_t rows = output_rows();
  got_rows_.resize(rows * row_bytes() / 4);
  got_scales_.resize(rows * plan_.moe_scale_bytes / 4);
  got_handle_.resize(layout_.bytes);
  got_combined_.resize(size_t{tokens} * plan_.hidden);
  allocate(rows);

  const auto fill = [&](CUdeviceptr to, uint32_t words_of_row) {
    std::vector<uint32_t> words;
    for (uint32_t token = 0; token < tokens; ++token)
      for (uint32_t i = 0; i < words_of_row; ++i) words.push_back(make_word(plan_.rank, token, i));
    if (!words.empty()) gpu_.write(to, words.data(), words.size() * 4, plan_.timeout_s);
  };
  fill(rows_, row_bytes() / 4);
  fill(scales_, plan_.moe_scale_bytes / 4);
  std::vector<uint16_t> given(rows * plan_.hidden);
  for (size_t row = 0; row < rows; ++row)
    for (uint32_t i = 0; i < plan_.hidden; ++i)
      given[row * plan_.hidden + i] = round_to_bfloat16(make_expert_value(
          plan_.rank, is_grouped() ? 0 : static_cast<uint32_t>(row % options_.max_tokens), i));
  gpu_.write(expert_rows_, given.data(), given.size() * 2, plan_.timeout_s);
}

// Other experts in each slot of a token, now and then none.
MoeBench::Ids MoeBench::draw_ids(uint64_t seed, uint32_t rank) const {
  std::mt19937_64 random(seed * 64 + rank);
  const uint32_t top_k = plan_.moe_top_k;
  Ids ids(size_t{tokens_} * top_k);
  for (uint32_t token = 0; token < tokens_; ++token) {
    int64_t* const of_token = &ids[size_t{token} * top_k];
    for (uint32_t k = 0; k < top_k; ++k) {
      do of_token[k] = static_cast<int64_t>(random() % plan_.moe_experts);
      while (std::find(of_token, of_token + k, of_token[k]) != of_token + k);
    }
  }
  return ids;
}
uint32_t MoeBench::draw_tokens(uint64_t seed, uint32_t rank) const {
  std::mt19937_64 random(seed * 64 + rank + 32);
  return static_cast<uint32_t>(random() % (tokens_ + 1));
}

void MoeBench::write_ids(uint64_t seed, uint32_t sets) {
  for (uint32_t set = 0; set < sets; ++set) {
    const Ids ids = draw_ids(seed + set, plan_.rank);
    gpu_.write(ids_ + set * ids.size() * sizeof(ids[0]), ids.data(), ids.size() * sizeof(ids[0]),
               plan_.timeout_s);
  }
}

void MoeBench::allocate(size_t rows) {
  rows_ = gpu_.allocate(size_t{tokens_} * row_bytes());
  scales_ = gpu_.allocate(size_t{tokens_} * plan_.moe_scale_bytes + 16);
  ids_ = gpu_.allocate(size_t{kSets} * tokens_ * plan_.moe_top_k * sizeof(int64_t));
  output_ = allocate_rows(rows * row_bytes());
  output_scales_ = allocate_rows(rows * plan_.moe_scale_bytes + 16);
  handle_ = allocate_rows(layout_.bytes);
  expert_rows_ = allocate_rows(rows * combined_bytes());
  combined_ = gpu_.allocate(size_t{tokens_} * combined_bytes());
}

CUdeviceptr MoeBench::allocate_rows(size_t bytes) {
  if (!plan_.moe_windows) return gpu_.allocate(bytes);
  verbena_window* window = nullptr;
  coll::check(verbena_window_allocate(ground_.context, bytes, &window), "verbena_window_allocate");
  windows_.push_back(window);
  return reinterpret_cast<CUdeviceptr>(verbena_window_address(window));
}

void MoeBench::dispatch(uint32_t set, uint32_t tokens) {
  verbena_moe_dispatch_arguments call{};
  call.tokens = tokens;
  call.row_bytes = row_bytes();
  call.rows = reinterpret_cast<const void*>(rows_);
  call.scale_bytes = plan_.moe_scale_bytes;
  call.scales = reinterpret_cast<const void*>(scales_);
  call.id_bits = 64;
  call.ids = reinterpret_cast<const void*>(ids_ + size_t{set} * tokens_ * plan_.moe_top_k * sizeof(int64_t));
  call.output = reinterpret_cast<void*>(output_);
  call.output_scales = reinterpret_cast<void*>(output_scales_);
  call.handle = reinterpret_cast<void*>(handle_);
  call.grouping = grouping_;
  call.alignment = plan_.moe_alignment;
  call.output_rows = static_cast<uint32_t>(output_rows());
  coll::check(ground_.library.verbena_moe_dispatch(moe_, &call, gpu_.stream()), "verbena_moe_dispatch");
}
void MoeBench::combine(uint32_t tokens) {
  verbena_moe_combine_arguments call{};
  call.tokens = tokens;
  call.order = is_grouped() ? VERBENA_MOE_REDUCED : VERBENA_MOE_ROWS;
  call.grouping = grouping_;
  call.type = VERBENA_OPS_BFLOAT16;
  call.rows = reinterpret_cast<const void*>(expert_rows_);
  call.handle = reinterpret_cast<const void*>(handle_);
  call.output = reinterpret_cast<void*>(combined_);
  coll::check(ground_.library.verbena_moe_combine(moe_, &call, gpu_.stream()), "verbena_moe_combine");
}

uint64_t MoeBench::count_wrong_words(size_t row, uint32_t source, uint32_t token) const {
  uint64_t wrong = 0;
  for (uint32_t i = 0; i < row_bytes() / 4; ++i)
    wrong += got_rows_[row * row_bytes() / 4 + i] != make_word(source, token, i);
  for (uint32_t i = 0; i < plan_.moe_scale_bytes / 4; ++i)
    wrong += got_scales_[row * plan_.moe_scale_bytes / 4 + i] != make_word(source, token, i);
  return wrong;
}

uint64_t MoeBench::count_wrong_rows(uint32_t source, const Ids& ids, uint32_t tokens) {
  uint64_t wrong = 0;
  uint32_t number = 0;
  for (uint32_t token = 0; token < tokens; ++token) {
    if (!goes_to(ids, token, plan_.rank)) continue;
    const size_t row = size_t{source} * options_.max_tokens + number++;
    wrong += read_word(layout_.sources, row) != static_cast<int32_t>(token);
    for (uint32_t k = 0; k < plan_.moe_top_k; ++k) {
      const int64_t id = ids[size_t{token} * plan_.moe_top_k + k];
      const auto local = static_cast<int32_t>(id % (plan_.moe_experts / ranks()));
      wrong += read_word(layout_.ids, row * plan_.moe_top_k + k) != (is_at(id, plan_.rank) ? local : -1);
    }
    if (!is_grouped()) wrong += count_wrong_words(row, source, token);
  }
  wrong += read_word(layout_.counts, source) != static_cast<int32_t>(number);
  for (; number < options_.max_tokens; ++number)
    wrong += read_word(layout_.ids, (size_t{source} * options_.max_tokens + number) * plan_.moe_top_k) != -1;
  if (wrong != 0)
    tell_wrong(std::to_string(wrong) + " wrong words in the rows from rank " + std::to_string(source));
  return wrong;
}

// The places of all rows, expert by expert.
uint64_t MoeBench::count_wrong_groups(const std::vector<Ids>& ids, const std::vector<uint32_t>& tokens) {
  const uint32_t local = plan_.moe_experts / ranks();
  uint64_t wrong = 0;
  size_t place = 0;
  for (uint32_t expert = 0; expert < local; ++expert) {
    const size_t begin = place;
    wrong += read_word(layout_.expert_begins, expert) != static_cast<int32_t>(begin);
    for (uint32_t source = 0; source < ranks(); ++source) {
      uint32_t number = 0;
      for (uint32_t token = 0; token < tokens[source]; ++token) {
        if (!goes_to(ids[source], token, plan_.rank)) continue;
        const size_t row = size_t{source} * options_.max_tokens + number++;
        for (uint32_t k = 0; k < plan_.moe_top_k; ++k) {
          const size_t pair = size_t{token} * plan_.moe_top_k + k;
          if (ids[source][pair] != int64_t{plan_.rank} * local + expert) continue;
          wrong += read_word(layout_.places, row * plan_.moe_top_k + k) != static_cast<int32_t>(place);
          wrong += count_wrong_words(place++, source, token);
        }
      }
    }
    wrong += read_word(layout_.expert_counts, expert) != static_cast<int32_t>(place - begin);
    const size_t align = plan_.moe_alignment;
    place = grouping_ == VERBENA_MOE_BY_EXPERT ? begin + size_t{ranks()} * options_.max_tokens
                                               : (place + align - 1) / align * align;
  }
  if (wrong != 0) tell_wrong(std::to_string(wrong) + " wrong words in the groups of experts");
  return wrong;
}

// Returns what a rank gives for an element of a token: of its row `number`, or the sum of its experts' rows.
float MoeBench::add_experts(const Ids& ids, uint32_t token, uint32_t rank, uint32_t number,
                            uint32_t i) const {
  if (!is_grouped()) return make_expert_value(rank, number, i);
  float sum = 0;
  for (uint32_t k = 0; k < plan_.moe_top_k; ++k)
    if (is_at(ids[size_t{token} * plan_.moe_top_k + k], rank)) sum += make_expert_value(rank, 0, i);
  return widen_bfloat16(round_to_bfloat16(sum));
}

// The sum of this rank's host comes first and is not rounded. Other hosts round their sums.
uint64_t MoeBench::count_wrong_sums(const Ids& ids, uint32_t tokens) {
  const uint32_t of_host = ranks() / plan_.hosts;
  std::vector<uint32_t> hosts = {plan_.rank / of_host};
  for (uint32_t host = 0; host < plan_.hosts; ++host)
    if (host != hosts[0]) hosts.push_back(host);
  std::vector<uint32_t> numbers(ranks());
  uint64_t wrong = 0;
  for (uint32_t token = 0; token < tokens; ++token) {
    std::vector<uint32_t> givers;
    for (uint32_t rank = 0; rank < ranks(); ++rank)
      if (goes_to(ids, token, rank)) givers.push_back(rank);
    for (uint32_t i = 0; i < plan_.hidden; ++i) {
      float sum = 0;
      for (const uint32_t host : hosts) {
        float of_ranks = 0;
        for (const uint32_t rank : givers)
          if (rank / of_host == host) of_ranks += add_experts(ids, token, rank, numbers[rank], i);
        sum += host == hosts[0] ? of_ranks : widen_bfloat16(round_to_bfloat16(of_ranks));
      }
      wrong += got_combined_[size_t{token} * plan_.hidden + i] != round_to_bfloat16(sum);
    }
    for (const uint32_t rank : givers) ++numbers[rank];
  }
  if (wrong != 0) tell_wrong(std::to_string(wrong) + " wrong elements in combined rows");
  return wrong;
}

uint64_t MoeBench::count_wrong(const std::vector<Ids>& ids, const std::vector<uint32_t>& tokens) {
  gpu_.read(got_handle_.data(), handle_, got_handle_.size(), plan_.timeout_s);
  gpu_.read(got_rows_.data(), output_, got_rows_.size() * 4, plan_.timeout_s);
  if (!got_scales_.empty())
    gpu_.read(got_scales_.data(), output_scales_, got_scales_.size() * 4, plan_.timeout_s);
  gpu_.read(got_combined_.data(), combined_, got_combined_.size() * 2, plan_.timeout_s);
  char text[512] = "";
  if (ground_.library.verbena_moe_get_error(moe_, text, sizeof(text)) != VERBENA_SUCCESS)
    throw ToolError(text);
  uint64_t wrong = count_wrong_sums(ids[plan_.rank], tokens[plan_.rank]);
  for (uint32_t source = 0; source < ranks(); ++source)
    wrong += count_wrong_rows(source, ids[source], tokens[source]);
  if (is_grouped()) wrong += count_wrong_groups(ids, tokens);
  return wrong;
}

uint64_t MoeBench::check(uint64_t seed) {
  std::vector<Ids> ids;
  std::vector<uint32_t> tokens;
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    ids.push_back(draw_ids(seed, rank));
    tokens.push_back(seed % 4 == 0 ? tokens_ : draw_tokens(seed, rank));
  }
  write_ids(seed, 1);
  dispatch(0, tokens[plan_.rank]);
  combine(tokens[plan_.rank]);
  return count_wrong(ids, tokens);
}

uint64_t MoeBench::check_replay(uint64_t seed) {
  if (!replay_) {
    replay_ = std::make_unique<Graph>(gpu_, [&] {
      for (uint32_t set = 0; set < kSets; ++set) {
        dispatch(set, tokens_);
        combine(tokens_);
      }
    });
  }
  write_ids(seed, kSets);
  replay_->launch();
  std::vector<Ids> ids;
  for (uint32_t rank = 0; rank < ranks(); ++rank) ids.push_back(draw_ids(seed + kSets - 1, rank));
  return count_wrong(ids, std::vector<uint32_t>(ranks(), tokens_));
}

// A dispatch, a combine, a pair, in microseconds: slopes over the calls of a graph.
std::vector<double> MoeBench::measure() {
  struct Case {
    std::function<void(unsigned)> enqueue;
    std::unique_ptr<Graph> shorter, longer;
    std::vector<double> shorter_us, longer_us;
  };
  std::vector<Case> cases(3);
  cases[0].enqueue = [&](unsigned i) { dispatch(i % kSets, tokens_); };
  cases[1].enqueue = [&](unsigned) { combine(tokens_); };
  cases[2].enqueue = [&](unsigned i) {
    dispatch(i % kSets, tokens_);
    combine(tokens_);
  };
  const auto capture = [&](const Case& one, unsigned calls) {
    return std::make_unique<Graph>(gpu_, [&] {
      for (unsigned i = 0; i < calls; ++i) one.enqueue(i);
    });
  };
  for (Case& one : cases) {
    one.shorter = capture(one, plan_.chain);
    one.longer = capture(one, 2 * plan_.chain);
  }
  for (unsigned sample = 0; sample <= plan_.repeats; ++sample) {
    for (Case& one : cases) {
      write_ids(sample * kSets + 1000, kSets);
      const double shorter_us = ground_.time_us([&] { one.shorter->launch(); });
      const double longer_us = ground_.time_us([&] { one.longer->launch(); });
      if (sample == 0) continue;
      one.shorter_us.push_back(shorter_us);
      one.longer_us.push_back(longer_us);
    }
  }
  std::vector<double> figures;
  figures.reserve(cases.size());
  for (const Case& one : cases)
    figures.push_back((compute_median(one.longer_us) - compute_median(one.shorter_us)) / plan_.chain);
  return ground_.agree(figures);
}

// An exchange whose shape is drawn, the same one on all ranks.
struct RandomExchange {
  RandomExchange(const MoeGround& ground, std::mt19937_64& random)
      : plan(draw_plan(ground.plan, random)),
        own{plan, ground.library, ground.gpu, ground.context, ground.team, ground.time_us, ground.agree},
        bench(own, plan.moe_tokens.front()) {}

  static CollPlan draw_plan(CollPlan plan, std::mt19937_64& random) {
    const auto draw = [&](uint32_t first, uint32_t last) {
      return std::uniform_int_distribution<uint32_t>(first, last)(random);
    };
    // Longer tensors go with more tokens.
    const uint64_t most = std::clamp<uint64_t>(plan.sizes.back() >> 13, 4, 128);
    plan.moe_tokens = {draw(1, static_cast<uint32_t>(most))};
    plan.moe_experts = plan.count_ranks * draw(1, 6);
    plan.moe_top_k = draw(1, std::min(plan.moe_experts, 9U));
    plan.hidden = 8 * draw(1, 40);
    plan.moe_row_bytes = draw(0, 1) == 0 ? 0 : 16 * draw(1, 30);
    plan.moe_scale_bytes = draw(0, 1) == 0 ? 0 : 4 * draw(1, 12);
    constexpr const char* kGroupings[] = {"rank", "expert", "ragged"};
    plan.moe_grouping = kGroupings[draw(0, 2)];
    plan.moe_alignment = 1U << draw(0, 4);
    plan.moe_windows = plan.moe_grouping == "rank" && plan.hosts == 1 && draw(0, 1) == 1;
    return plan;
  }

  const CollPlan plan;
  const MoeGround own;
  MoeBench bench;
};

}  // namespace

void run_random_moe(const MoeGround& ground, uint64_t rounds) {
  constexpr size_t kExchanges = 6;  // alive at the same time; their memory is freed with the process
  const CollPlan& plan = ground.plan;
  std::mt19937_64 common(plan.seed * 0x9e3779b97f4a7c15U),
      own((plan.seed + 1 + plan.rank) * 0xd1b54a32d192ed03U);
  std::vector<std::unique_ptr<RandomExchange>> exchanges;
  const int64_t begin_ns = now_ns();
  uint64_t wrong = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    if (exchanges.size() < kExchanges) exchanges.push_back(std::make_unique<RandomExchange>(ground, common));
    MoeBench& bench = exchanges[common() % exchanges.size()]->bench;
    const uint64_t seed = common() >> 8;
    if (own() % 3 == 0) usleep(static_cast<useconds_t>(own() % 2000));
    const uint64_t of_round = common() % 3 == 0 ? bench.check_replay(seed) : bench.check(seed);
    if (of_round != 0)
      std::fprintf(stderr, "rank %u: round %llu of seed %llu: %llu wrong elements\n", plan.rank,
                   static_cast<unsigned long long>(round), static_cast<unsigned long long>(plan.seed),
                   static_cast<unsigned long long>(of_round));
    wrong += of_round;
  }
  dprintf(kControlDescriptor, "checked %llu %llu random dispatches and combines, seed %llu, in %lld ms\n",
          static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(rounds),
          static_cast<unsigned long long>(plan.seed),
          static_cast<long long>((now_ns() - begin_ns) / 1'000'000));
}

void run_moe(const MoeGround& ground) {
  const CollPlan& plan = ground.plan;
  const auto tell = [&](const std::string& line) { dprintf(kControlDescriptor, "%s\n", line.c_str()); };
  for (const uint32_t tokens : plan.moe_tokens) {
    MoeBench bench(ground, tokens);
    const std::string name = "moe of " + std::to_string(tokens) + " tokens";
    const int64_t begin_ns = now_ns();
    uint64_t wrong = 0, rounds = 0;
    if (plan.checks) {
      for (; rounds < kEagerRounds; ++rounds) wrong += bench.check(rounds);
      wrong += bench.check_replay(77);
    }
    for (uint64_t round = 0; round < plan.soak; ++round)
      wrong += round % 2 == 0 ? bench.check(round + 100) : bench.check_replay(round + 100);
    tell("checked " + std::to_string(wrong) + " " + name + ", " + std::to_string(rounds + plan.soak) +
         " rounds with changing routes, in " + std::to_string((now_ns() - begin_ns) / 1'000'000) + " ms");
    if (!plan.measures || wrong != 0) continue;
    const std::vector<double> us = bench.measure();
    char text[256];
    std::snprintf(text, sizeof(text),
                  "%s: dispatch %.2f us, combine %.2f us, both in one stream %.2f us, workspace %.1f MB",
                  name.c_str(), us[0], us[1], us[2], static_cast<double>(bench.workspace_bytes()) / 1e6);
    if (plan.rank == 0) tell(text);
  }
}

}  // namespace verbena::tools::coll
