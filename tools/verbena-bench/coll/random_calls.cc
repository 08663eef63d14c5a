#include "verbena-bench/coll/random_calls.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "verbena-bench/coll/contenders.h"
#include "verbena-bench/coll/norm_calls.h"
#include "verbena-bench/coll/numbers.h"

namespace verbena::tools::coll {
namespace {

constexpr uint64_t kMaxCalls = 4;  // of a step
constexpr double kCodedBound = 0.25;

bool is_drawn(Random& random, double share) {
  return std::uniform_real_distribution<>(0, 1)(random) < share;
}
// Draws sizes with a uniform logarithm, so that small ones are as frequent as large ones.
uint64_t draw_size(Random& random, uint64_t most) {
  const double max_bits = std::log2(static_cast<double>(most));
  return std::clamp<uint64_t>(
      static_cast<uint64_t>(std::exp2(std::uniform_real_distribution<>(0, max_bits)(random))), 1, most);
}

enum class Form { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kAllToAll, kAllGatherV, kAllToAllV };
constexpr const char* kFormNames[] = {"all_reduce", "all_gather",   "reduce_scatter", "broadcast",
                                      "all_to_all", "all_gather_v", "all_to_all_v"};

// The properties that are equal on all ranks.
struct Call {
  Form form = Form::kAllReduce;
  verbena_ops_type type = VERBENA_OPS_FLOAT32;
  verbena_ops_reduction reduction = VERBENA_OPS_SUM;
  verbena_ops_algorithm codec = VERBENA_OPS_AUTO;
  uint64_t count = 0, rows = 1;  // elements of the tensor, or of a message; rows of a message
  uint32_t root = 0, number = 0;
  verbena_ops_choice choice{};
  std::vector<int64_t> counts;  // of the v forms: [ranks], or [ranks][ranks] from each to each

  uint64_t element() const { return get_element_bytes(type); }
  std::string describe() const {
    return std::string(kFormNames[static_cast<int>(form)]) + " type " + std::to_string(type) + " reduction " +
           std::to_string(reduction) + " codec " + std::to_string(codec) + " count " + std::to_string(count) +
           " rows " + std::to_string(rows) + " algorithm " + std::to_string(choice.algorithm) + " blocks " +
           std::to_string(choice.blocks) + " threads " + std::to_string(choice.threads) + " chunks " +
           std::to_string(choice.chunk_bytes);
  }
};
// The properties that may differ between ranks.
struct Place {
  CUdeviceptr input = 0, output = 0;
  uint64_t input_offset = 0, output_offset = 0;  // from a multiple of 16
  bool is_in_place = false;
};

class RandomCalls {
 public:
  RandomCalls(const CollPlan& plan, const OpsLibrary& library, verbena_ops* ops, Gpu& gpu,
              const RandomPlaces& places)
      : plan_(plan),
        library_(library),
        ops_(ops),
        gpu_(gpu),
        places_(places),
        counts_(gpu.allocate(2 * kMaxCalls * kCountsBytes)) {
    gpu_.driver().check(gpu_.driver().cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }

  uint64_t run() {
    for (step_ = 0; step_ < plan_.random; ++step_) {
      Random common(plan_.seed * 0x9e3779b97f4a7c15U + step_);
      Random own((plan_.seed + 1 + plan_.rank) * 0xd1b54a32d192ed03U + step_);
      run_step(common, own);
    }
    return wrong_;
  }

 private:
  static constexpr uint64_t kCountsBytes = 256 * sizeof(int64_t);

  uint64_t ranks() const { return plan_.count_ranks; }

  Call draw_call(Random& common, bool is_grouped) {
    Call call;
    const bool has_counts = plan_.hosts == 1 && is_drawn(common, 0.2);
    call.form = has_counts ? static_cast<Form>(draw_number(common, 5, 6))
                           : static_cast<Form>(is_drawn(common, 0.5) ? 0 : draw_number(common, 1, 4));
    // Sums of whole vectors of floats have separate kernels: half of the calls use them.
    const bool is_common = is_drawn(common, 0.5);
    call.type = static_cast<verbena_ops_type>(draw_number(common, 0, is_common ? 2 : 4));
    const bool reduces = call.form == Form::kAllReduce || call.form == Form::kReduceScatter;
    if (reduces && !is_common && is_drawn(common, 0.5))
      call.reduction = static_cast<verbena_ops_reduction>(draw_number(common, 1, 3));
    call.number = static_cast<uint32_t>(common());
    call.root = static_cast<uint32_t>(draw_number(common, 0, ranks() - 1));
    const uint64_t part = places_.bytes / kMaxCalls - 4 * kMargin;
    const bool is_of_all = call.form != Form::kAllReduce && call.form != Form::kBroadcast;
    const uint64_t most = part / call.element() / (is_of_all ? ranks() : 1);
    call.count = draw_size(common, most);
    const uint64_t unit = 16 * ranks();
    if (is_common && most >= unit) call.count = std::min(most / unit, (call.count + unit - 1) / unit) * unit;
    const bool has_rows =
        call.form == Form::kAllGather || call.form == Form::kReduceScatter || call.form == Form::kAllToAll;
    if (has_rows && is_drawn(common, 0.3)) {
      call.rows = draw_number(common, 2, 9);
      call.count = std::max(call.rows, call.count / call.rows * call.rows);
      if (call.count > most) call.rows = 1, call.count = most;
    }
    const bool can_be_coded = call.form == Form::kAllReduce && !is_grouped &&
                              call.reduction == VERBENA_OPS_SUM &&
                              (call.type == VERBENA_OPS_FLOAT16 || call.type == VERBENA_OPS_BFLOAT16);
    if (can_be_coded && is_drawn(common, 0.2))
      call.codec =
          static_cast<verbena_ops_algorithm>(draw_number(common, VERBENA_OPS_FP8, VERBENA_OPS_INT4_INT8));
    if (has_counts) draw_counts(common, call);
    draw_choice(common, call);
    return call;
  }
  void draw_counts(Random& common, Call& call) const {
    call.counts.resize(call.form == Form::kAllGatherV ? ranks() : ranks() * ranks());
    for (int64_t& count : call.counts)
      count = is_drawn(common, 0.2) ? 0 : static_cast<int64_t>(draw_number(common, 0, call.count));
  }
  void draw_choice(Random& common, Call& call) {
    if (is_drawn(common, 0.3)) return;
    if (plan_.hosts > 1 || call.codec != VERBENA_OPS_AUTO) {
      const verbena_ops_algorithm exact = is_drawn(common, 0.5) ? VERBENA_OPS_LOSSLESS : VERBENA_OPS_AUTO;
      call.choice.algorithm = plan_.hosts == 1                 ? call.codec
                              : call.codec == VERBENA_OPS_AUTO ? exact
                                                               : VERBENA_OPS_AUTO;
    } else {
      constexpr verbena_ops_algorithm kAll[] = {VERBENA_OPS_ONE_SHOT, VERBENA_OPS_TWO_SHOT,
                                                VERBENA_OPS_BULK_ONE_SHOT, VERBENA_OPS_BULK_TWO_SHOT,
                                                VERBENA_OPS_DIRECT};
      const bool is_plain = call.form == Form::kAllReduce;
      call.choice.algorithm = kAll[draw_number(common, 0, is_plain ? 4 : 3)];
    }
    if (is_drawn(common, 0.5))
      call.choice.blocks = static_cast<uint32_t>(draw_number(common, 1, std::min(plan_.blocks, 16U)));
    if (is_drawn(common, 0.5)) call.choice.threads = static_cast<uint32_t>(32 * draw_number(common, 1, 16));
    if (is_drawn(common, 0.2))
      call.choice.chunk_bytes = static_cast<uint32_t>(16 * draw_number(common, 1, 64));
  }

  Place draw_place(Random& own, const Call& call, uint64_t index) {
    Place place;
    const uint64_t begin = index * (places_.bytes / kMaxCalls) + kMargin;
    // If peers access inputs and outputs directly, the offsets must be equal on all ranks.
    const bool is_alike = call.choice.algorithm == VERBENA_OPS_DIRECT;
    if (!is_alike && is_drawn(own, 0.5)) place.input_offset = call.element() * draw_number(own, 0, 15);
    if (!is_alike && is_drawn(own, 0.5)) place.output_offset = call.element() * draw_number(own, 0, 15);
    place.input = places_.inputs + begin + place.input_offset;
    place.output = places_.outputs + begin + place.output_offset;
    place.is_in_place =
        !is_alike && is_drawn(own, 0.3) &&
        (call.form == Form::kAllReduce || (call.form == Form::kBroadcast && plan_.rank == call.root));
    if (place.is_in_place) place.output = place.input;
    return place;
  }

  void run_step(Random& common, Random& own) {
    if (is_drawn(common, 0.15)) return run_norm(common, own);
    std::vector<Call> calls(is_drawn(common, 0.15) ? draw_number(common, 2, kMaxCalls) : 1);
    const bool is_grouped = calls.size() > 1 || is_drawn(common, 0.05);
    for (Call& call : calls) call = draw_call(common, is_grouped);
    std::vector<Place> places;
    clear();
    for (size_t i = 0; i < calls.size(); ++i) {
      places.push_back(draw_place(own, calls[i], i));
      write_input(calls[i], places.back(), i);
    }
    execute(own, calls.front().describe(), [&](CUstream stream) {
      if (is_grouped) check(library_.verbena_ops_group_begin(ops_), "verbena_ops_group_begin");
      for (size_t i = 0; i < calls.size(); ++i) make(calls[i], places[i], i, stream);
      if (is_grouped) check(library_.verbena_ops_group_end(ops_, stream), "verbena_ops_group_end");
    });
    for (size_t i = 0; i < calls.size(); ++i) compare(calls[i], places[i]);
  }
  void run_norm(Random& common, Random& own) {
    clear();
    const NormCall call(plan_, gpu_, places_, common, own);
    call.prepare();
    execute(own, call.describe(), [&](CUstream stream) { call.enqueue(library_, ops_, stream); });
    const uint64_t wrong = call.count_wrong();
    if (wrong == 0) return;
    wrong_ += wrong;
    std::fprintf(stderr, "rank %u: step %llu of seed %llu: %llu elements wrong: %s\n", plan_.rank,
                 static_cast<unsigned long long>(step_), static_cast<unsigned long long>(plan_.seed),
                 static_cast<unsigned long long>(wrong), call.describe().c_str());
  }
  void clear() {
    gpu_.fill_words(places_.outputs, 0x5a5a5a5a, places_.bytes / 4);
    gpu_.fill_words(places_.inputs, 0x5a5a5a5a, places_.bytes / 4);
  }
  // Runs what `enqueue` puts into a stream, in a graph or one of two streams, perhaps late.
  void execute(Random& own, const std::string& name, const std::function<void(CUstream)>& enqueue) {
    gpu_.wait(plan_.timeout_s);
    if (is_drawn(own, 0.3)) std::this_thread::sleep_for(std::chrono::microseconds(draw_number(own, 0, 2000)));
    const auto enqueue_late = [&](CUstream stream) {
      if (is_drawn(own, 0.2))
        check(library_.verbena_ops_pause(ops_, draw_number(own, 0, 200'000), stream), "verbena_ops_pause");
      enqueue(stream);
    };
    const uint64_t way = draw_number(own, 0, 3);
    if (way == 0) {
      Graph graph(gpu_, [&] { enqueue_late(gpu_.stream()); });
      graph.launch();
      gpu_.wait(plan_.timeout_s);
    } else if (way == 1) {
      enqueue_late(other_);
      gpu_.wait(other_, plan_.timeout_s);
    } else {
      enqueue_late(gpu_.stream());
      gpu_.wait(plan_.timeout_s);
    }
    char text[512] = "";
    if (library_.verbena_ops_get_error(ops_, text, sizeof(text)) != VERBENA_SUCCESS)
      throw ToolError("step " + std::to_string(step_) + " of seed " + std::to_string(plan_.seed) + ", " +
                      name + ": " + text);
  }
  uint64_t input_count(const Call& call, uint32_t rank) const {
    switch (call.form) {
      case Form::kReduceScatter:
      case Form::kAllToAll:
        return call.count * ranks();
      case Form::kAllGatherV:
        return static_cast<uint64_t>(call.counts[rank]);
      case Form::kAllToAllV: {
        uint64_t all = 0;
        for (uint64_t to = 0; to < ranks(); ++to)
          all += static_cast<uint64_t>(call.counts[rank * ranks() + to]);
        return all;
      }
      default:
        return call.count;
    }
  }
  Bytes input_of(const Call& call, uint32_t rank) const {
    return make_input(call.type, input_count(call, rank), rank, call.number);
  }
  void write_input(const Call& call, const Place& place, size_t index) {
    const Bytes input = input_of(call, plan_.rank);
    if (!input.empty()) gpu_.write(place.input, input.data(), input.size(), plan_.timeout_s);
    if (call.counts.empty()) return;
    std::vector<int64_t> counts = call.counts;
    if (call.form == Form::kAllToAllV) {
      counts.clear();
      for (uint64_t peer = 0; peer < ranks(); ++peer)
        counts.push_back(call.counts[plan_.rank * ranks() + peer]);
      for (uint64_t peer = 0; peer < ranks(); ++peer)
        counts.push_back(call.counts[peer * ranks() + plan_.rank]);
    }
    gpu_.write(counts_ + index * kCountsBytes, counts.data(), counts.size() * sizeof(int64_t),
               plan_.timeout_s);
  }

  void make(const Call& call, const Place& place, size_t index, CUstream stream) {
    const auto* const input = reinterpret_cast<const void*>(place.input);
    auto* const output = reinterpret_cast<void*>(place.output);
    const verbena_ops_choice* const choice = &call.choice;
    const uint64_t bytes = call.count * call.element(), row_bytes = bytes / call.rows;
    const auto* const counts = reinterpret_cast<const int64_t*>(counts_ + index * kCountsBytes);
    const verbena_ops_sizes sizes{call.element(), input_count(call, plan_.rank) * call.element(),
                                  expect(call).size(), bytes};
    const verbena_result result = [&] {
      switch (call.form) {
        case Form::kAllReduce:
          if (call.codec != VERBENA_OPS_AUTO)
            return library_.verbena_ops_all_reduce_quantised(ops_, input, output, call.count, call.type,
                                                             call.codec, 0, choice, stream);
          return library_.verbena_ops_all_reduce(ops_, input, output, call.count, call.type, call.reduction,
                                                 choice, stream);
        case Form::kAllGather:
          return library_.verbena_ops_all_gather(ops_, input, output, call.rows, row_bytes, choice, stream);
        case Form::kReduceScatter:
          return library_.verbena_ops_reduce_scatter(ops_, input, output, call.rows, call.count / call.rows,
                                                     call.type, call.reduction, choice, stream);
        case Form::kBroadcast:
          return library_.verbena_ops_broadcast(ops_, input, output, bytes, call.root, choice, stream);
        case Form::kAllToAll:
          return library_.verbena_ops_all_to_all(ops_, input, output, bytes, call.rows, 1, choice, stream);
        case Form::kAllGatherV:
          return library_.verbena_ops_all_gather_v(ops_, input, output, counts, nullptr, &sizes, choice,
                                                   stream);
        case Form::kAllToAllV:
          break;
      }
      return library_.verbena_ops_all_to_all_v(ops_, input, output, counts, nullptr, counts + ranks(),
                                               nullptr, &sizes, choice, stream);
    }();
    check(result, call.describe().c_str());
  }

  // Elements `first` to `first + count` of one rank's input.
  Bytes part_of(const Call& call, uint32_t rank, uint64_t first, uint64_t count) const {
    const Bytes all = input_of(call, rank);
    const auto begin = all.begin() + static_cast<int64_t>(first * call.element());
    return {begin, begin + static_cast<int64_t>(count * call.element())};
  }
  Bytes expect(const Call& call) const {
    const uint32_t me = plan_.rank;
    const auto of_host = static_cast<uint32_t>(ranks() / plan_.hosts);
    const auto append = [](Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); };
    const uint64_t row = call.count / call.rows;
    Bytes output;
    switch (call.form) {
      case Form::kAllReduce:
        return make_reduced(call.type, call.reduction, call.count, plan_.count_ranks, call.number, of_host);
      case Form::kReduceScatter: {
        const Bytes all = make_reduced(call.type, call.reduction, call.count * ranks(), plan_.count_ranks,
                                       call.number, of_host);
        for (uint64_t i = 0; i < call.rows; ++i) {
          const auto begin = all.begin() + static_cast<int64_t>((i * ranks() + me) * row * call.element());
          output.insert(output.end(), begin, begin + static_cast<int64_t>(row * call.element()));
        }
        return output;
      }
      case Form::kBroadcast:
        return input_of(call, call.root);
      case Form::kAllGather:
        for (uint64_t i = 0; i < call.rows; ++i)
          for (uint32_t rank = 0; rank < ranks(); ++rank) append(output, part_of(call, rank, i * row, row));
        return output;
      case Form::kAllToAll:
        for (uint32_t rank = 0; rank < ranks(); ++rank)
          for (uint64_t i = 0; i < call.rows; ++i)
            append(output, part_of(call, rank, (i * ranks() + me) * row, row));
        return output;
      case Form::kAllGatherV:
        for (uint32_t rank = 0; rank < ranks(); ++rank) append(output, input_of(call, rank));
        return output;
      case Form::kAllToAllV:
        break;
    }
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      uint64_t first = 0;
      for (uint32_t to = 0; to < me; ++to) first += static_cast<uint64_t>(call.counts[rank * ranks() + to]);
      append(output, part_of(call, rank, first, static_cast<uint64_t>(call.counts[rank * ranks() + me])));
    }
    return output;
  }

  void compare(const Call& call, const Place& place) {
    const Bytes expected = expect(call);
    Bytes got(expected.size() + 2 * kMargin);
    gpu_.read(got.data(), place.output - kMargin, got.size(), plan_.timeout_s);
    const Bytes output(got.begin() + kMargin, got.end() - kMargin);
    uint64_t wrong = 0, first = 0;
    if (call.codec == VERBENA_OPS_AUTO) {
      for (uint64_t i = expected.size(); i > 0; --i)
        if (output[i - 1] != expected[i - 1]) ++wrong, first = i - 1;
    } else {
      std::vector<Bytes> terms;
      for (uint32_t rank = 0; rank < ranks(); ++rank) terms.push_back(input_of(call, rank));
      wrong += measure_error(call.type, output, expected, terms) > kCodedBound;
    }
    for (uint64_t i = 0; i < kMargin; ++i)
      wrong += (got[i] != kUntouched) + (got[got.size() - 1 - i] != kUntouched);
    if (call.codec != VERBENA_OPS_AUTO) tell_bits(output);
    wrong_ += wrong;
    if (wrong == 0 || told_++ >= kMaxTold) return;
    std::fprintf(
        stderr,
        "rank %u: step %llu of seed %llu: %llu bytes wrong, first %llu of %zu: %s; offsets %llu and %llu%s\n",
        plan_.rank, static_cast<unsigned long long>(step_), static_cast<unsigned long long>(plan_.seed),
        static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(first), expected.size(),
        call.describe().c_str(), static_cast<unsigned long long>(place.input_offset),
        static_cast<unsigned long long>(place.output_offset), place.is_in_place ? ", in place" : "");
  }
  // Equal on all ranks.
  void tell_bits(const Bytes& output) const {
    dprintf(kControlDescriptor, "bits %016llx random step %llu\n",
            static_cast<unsigned long long>(hash_bytes(output)), static_cast<unsigned long long>(step_));
  }

  static constexpr uint64_t kMaxTold = 8;
  const CollPlan& plan_;
  const OpsLibrary& library_;
  verbena_ops* const ops_;
  Gpu& gpu_;
  const RandomPlaces places_;
  const CUdeviceptr counts_;
  CUstream other_ = nullptr;
  uint64_t step_ = 0, wrong_ = 0, told_ = 0;
};

}  // namespace

uint64_t run_random_calls(const CollPlan& plan, const OpsLibrary& library, verbena_ops* ops, Gpu& gpu,
                          const RandomPlaces& places) {
  return RandomCalls(plan, library, ops, gpu, places).run();
}

}  // namespace verbena::tools::coll
