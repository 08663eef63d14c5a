// One rank: checks every element of every way, then measures all contenders under one clock.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/gpu.h"
#include "common/size.h"
#include "common/table.h"
#include "verbena-bench/coll/coll_plan.h"
#include "verbena-bench/coll/contenders.h"
#include "verbena-bench/coll/moe_bench.h"
#include "verbena-bench/coll/numbers.h"
#include "verbena-bench/coll/random_calls.h"
#include "verbena/verbena.hpp"

namespace verbena::tools::coll {
namespace {

constexpr uint64_t kPause_ns = 60'000;  // the host puts a sample's work into the stream meanwhile
constexpr uint64_t kMarginBytes = 256;  // after an output: nothing may write there
constexpr uint64_t kBarrierElements = 8;
constexpr uint64_t kCallsPerMoeRound = 8;  // random calls for each random dispatch and combine
constexpr unsigned kEagerCalls = 100;
constexpr double kMaxCodedError = 0.25;  // of quantised sums
constexpr uint64_t kLate_ns[] = {5'000, 50'000};
// In bf16, and in f32: a chain of 40 sums of eight ranks stays finite.
constexpr float kTiny = 0x1p-100F;

void tell(const std::string& line) {
  dprintf(kControlDescriptor, "%s\n", line.c_str());
}

class Rank {
 public:
  explicit Rank(const CollPlan& plan);
  ~Rank();
  void check_all();
  void make_numbers();
  void measure_all();
  void soak();
  void call_at_random();
  MoeGround make_moe_ground();
  void exchange_tokens();
  // Replays a graph plan.soak times, each time with another input. Returns the sum of `count_wrong`.
  uint64_t replay(Graph& graph, uint64_t bytes, const std::function<void(uint64_t, char*)>& prepare,
                  const std::function<uint64_t(uint64_t, const char*)>& count_wrong);
  // Runs a quantised all-reduce on alternating zeros and ones, whose sums are exact. So data left over from
  // an earlier call is detected.
  void soak_coded(const Named& named);

 private:
  // The context of ranks, and our communicator over it.
  struct Ours {
    Ours(const CollPlan& plan, const OpsLibrary& library);
    ~Ours() { library.verbena_ops_destroy(ops); }
    const OpsLibrary& library;
    SymmetricContext context;
    SymmetricTeam team;
    verbena_ops* ops = nullptr;
  };
  struct Entry {
    std::shared_ptr<Contender> contender;
    std::unique_ptr<Graph> shorter = {}, longer = {};
    std::vector<double> shorter_us = {}, longer_us = {};
    double slope_us(unsigned chain) const {
      return (compute_median(longer_us) - compute_median(shorter_us)) / chain;
    }
  };

  // The operation to measure, as named in the plan.
  struct Subject {
    std::string operation_name, type_name;
    verbena_ops_operation operation;
    verbena_ops_type type;
    Named named;
  };
  std::vector<Subject> list_subjects() const;
  void make_norm_places(verbena_ops_type type);
  // Bytes of the operation's input and output for tensors, or messages, of the given bytes.
  uint64_t input_bytes(const Subject& subject, uint64_t bytes) const;
  uint64_t output_bytes(const Subject& subject, uint64_t bytes) const;
  Bytes expect(const Subject& subject, uint64_t count, uint32_t round) const;
  std::vector<std::unique_ptr<Contender>> list_contenders(const Subject& subject, uint64_t bytes);
  uint64_t count_wrong(const Bytes& output, const Bytes& expected, uint64_t element,
                       const std::string& maker) const;
  // Random offsets of this rank's tensors in a check; they differ between ranks.
  struct Placement {
    uint64_t input_offset = 0, output_offset = 0;
    bool is_in_place = false;
  };
  Placement draw_placement(const Subject& subject, uint32_t round) const;
  uint64_t check_one(Contender& contender, const Subject& subject, uint64_t bytes, const Placement& placement,
                     uint32_t round);
  uint64_t check_chain(Contender& contender, uint64_t bytes);
  void expect_no_error();
  // Rounds down to whole rows, if the operation has rows.
  uint64_t cut_rows(const Subject& subject, uint64_t bytes) const;
  void measure_size(const Subject& subject, uint64_t bytes);
  // `chain` operations, each on the result of the one before.
  std::unique_ptr<Graph> make_graph(unsigned chain, const std::function<void(unsigned)>& enqueue);
  double time_us(const std::function<void()>& launch);
  void measure_graphs(std::vector<Entry>& entries);
  void measure_best(const std::string& key, Entry& entry, const Work& work);
  double measure_slope(const std::function<void(unsigned)>& enqueue);
  // The largest of all ranks, for each.
  std::vector<double> agree(std::vector<double> values);
  void enqueue_chain(Contender& contender, Work work, unsigned index);

  const CollPlan plan_;
  const CudaDriver& driver_;
  Gpu gpu_;
  OpsLibrary library_;
  std::unique_ptr<Ours> ours_;
  std::vector<SymmetricWindow> windows_;
  std::shared_ptr<NcclContender> nccl_;   // one for all sizes
  std::unique_ptr<OurContender> chosen_;  // of all-reduces
  NormPlaces norm_;
  CUdeviceptr first_ = 0, second_ = 0, numbers_ = 0, barrier_;
  uint64_t room_bytes_ = 0;
  std::optional<Bytes> normed_;  // of the current check
};

const CudaDriver& need_driver() {
  std::string why;
  const CudaDriver* const driver = load_cuda_driver(why);
  if (driver == nullptr) throw ToolError(why);
  return *driver;
}

verbena_unique_id parse_id(const std::string& digits) {
  verbena_unique_id id{};
  bench::from_digits(digits, id.bytes, sizeof(id.bytes));
  return id;
}

Rank::Ours::Ours(const CollPlan& plan, const OpsLibrary& of)
    : library(of), context(parse_id(plan.id), plan.rank, plan.count_ranks), team(context.world()) {
  verbena_ops_options options{};
  options.blocks = plan.blocks;
  options.packet_bytes = plan.packet_bytes;
  options.programmatic_launch = plan.pdl ? 1 : 0;
  options.pause_before_ns = options.pause_after_ns = plan.delay_us * 1000;
  check(library.verbena_ops_create(context.handle(), team.handle(), &options, &ops), "verbena_ops_create");
}

Rank::Rank(const CollPlan& plan)
    : plan_(plan),
      driver_(need_driver()),
      gpu_(driver_, plan.gpu),
      library_(load_ops_library(plan.library)),
      barrier_(gpu_.allocate(kBarrierElements * sizeof(float))) {
  ours_ = std::make_unique<Ours>(plan_, library_);
  for (const Subject& subject : list_subjects())
    for (const uint64_t bytes : plan_.sizes)
      // All-reduces in graphs do not have whole rows.
      room_bytes_ = std::max({room_bytes_, bytes, input_bytes(subject, cut_rows(subject, bytes)),
                              output_bytes(subject, cut_rows(subject, bytes))});
  room_bytes_ += 2 * kMarginBytes;
  // In windows, for copy engines; to all others it makes no difference where tensors lie.
  for (CUdeviceptr* const tensor : {&first_, &second_}) {
    windows_.push_back(ours_->context.allocate(room_bytes_));
    *tensor = reinterpret_cast<CUdeviceptr>(windows_.back().address<char>());
  }
  chosen_ =
      std::make_unique<OurContender>(library_, ours_->ops, verbena_ops_choice{VERBENA_OPS_AUTO, 0, 0, 0});
  for (const Subject& subject : list_subjects())
    if (subject.named.has_norm && norm_.sum == 0) make_norm_places(subject.type);
  tell("gpu " + gpu_.name());
  gpu_.fill_words(barrier_, 0, kBarrierElements);
  for (const std::string& name : plan_.against)
    if (name == "nccl")
      nccl_ =
          std::make_shared<NcclContender>(plan_.nccl_library, plan_.nccl_id, plan_.rank, plan_.count_ranks);
}

// After an error, kernels that were enqueued before it may still use the windows. A failed wait says nothing
// new: the error that ends the run is on its way.
Rank::~Rank() {
  try {
    gpu_.wait(plan_.timeout_s);
  } catch (const ToolError&) {  // NOLINT(bugprone-empty-catch)
  }
  windows_.clear();
  ours_.reset();
}

void Rank::make_norm_places(verbena_ops_type type) {
  const uint64_t row_bytes = plan_.hidden * get_element_bytes(type);
  norm_.hidden = plan_.hidden;
  for (CUdeviceptr* const place :
       {&norm_.residual_in, &norm_.residual_out, &norm_.sum, &norm_.quantised, &norm_.scales})
    *place = gpu_.allocate(room_bytes_);
  norm_.weight = gpu_.allocate(row_bytes + sizeof(uint32_t));
  if (std::any_of(plan_.operations.begin(), plan_.operations.end(),
                  [](const std::string& name) { return find_operation(name).is_finalized; })) {
    std::vector<int32_t> indices(NormPlaces::kTopK * (room_bytes_ / row_bytes));
    std::iota(indices.begin(), indices.end(), 0);
    norm_.expert_rows = gpu_.allocate(NormPlaces::kTopK * room_bytes_);
    norm_.indices = gpu_.allocate(indices.size() * sizeof(int32_t));
    norm_.expert_weights = gpu_.allocate(indices.size() * sizeof(float));
    gpu_.fill_words(norm_.expert_rows, 0, NormPlaces::kTopK * room_bytes_ / 4);
    gpu_.write(norm_.indices, indices.data(), indices.size() * sizeof(int32_t), plan_.timeout_s);
    gpu_.fill_words(norm_.expert_weights, 0x3f800000, indices.size());
  }
  gpu_.fill_words(norm_.residual_in, 0, room_bytes_ / 4);
  gpu_.fill_words(norm_.scales, 0x3f800000, room_bytes_ / 4);  // one scale for all is read
  gpu_.fill_words(norm_.weight, type == VERBENA_OPS_FLOAT16 ? 0x3c003c00u : 0x3f803f80u, row_bytes / 4 + 1);
}

std::vector<Rank::Subject> Rank::list_subjects() const {
  std::vector<Subject> subjects;
  for (const std::string& operation : plan_.operations)
    for (const std::string& type : plan_.types) {
      const Named named = find_operation(operation);
      subjects.push_back({operation, type, named.operation, find_type(type), named});
    }
  return subjects;
}

uint64_t Rank::input_bytes(const Subject& subject, uint64_t bytes) const {
  const bool is_of_all =
      subject.operation == VERBENA_OPS_REDUCE_SCATTER || subject.operation == VERBENA_OPS_ALL_TO_ALL;
  return is_of_all ? bytes * plan_.count_ranks : bytes;
}
uint64_t Rank::output_bytes(const Subject& subject, uint64_t bytes) const {
  const bool is_of_all =
      subject.operation == VERBENA_OPS_ALL_GATHER || subject.operation == VERBENA_OPS_ALL_TO_ALL;
  return is_of_all ? bytes * plan_.count_ranks : bytes;
}

Bytes Rank::expect(const Subject& subject, uint64_t count, uint32_t round) const {
  const uint64_t bytes = count * get_element_bytes(subject.type);
  const uint32_t of_host = plan_.count_ranks / plan_.hosts;
  const auto cut = [&](const Bytes& of, uint64_t part) {
    const auto begin = of.begin() + static_cast<int64_t>(part * bytes);
    return Bytes(begin, begin + static_cast<int64_t>(bytes));
  };
  Bytes output;
  switch (subject.operation) {
    case VERBENA_OPS_ALL_REDUCE:
      return make_reduced(subject.type, VERBENA_OPS_SUM, count, plan_.count_ranks, round, of_host);
    case VERBENA_OPS_REDUCE_SCATTER:
      return cut(make_reduced(subject.type, VERBENA_OPS_SUM, count * plan_.count_ranks, plan_.count_ranks,
                              round, of_host),
                 plan_.rank);
    case VERBENA_OPS_BROADCAST:
      return make_input(subject.type, count, round % plan_.count_ranks, round);
    case VERBENA_OPS_ALL_GATHER:
    case VERBENA_OPS_ALL_TO_ALL:
      break;
  }
  for (uint32_t rank = 0; rank < plan_.count_ranks; ++rank) {
    const bool is_gathered = subject.operation == VERBENA_OPS_ALL_GATHER;
    const uint64_t theirs = is_gathered ? count : count * plan_.count_ranks;
    const Bytes part = cut(make_input(subject.type, theirs, rank, round), is_gathered ? 0 : plan_.rank);
    output.insert(output.end(), part.begin(), part.end());
  }
  return output;
}

std::vector<std::unique_ptr<Contender>> Rank::list_contenders(const Subject& subject, uint64_t bytes) {
  std::vector<std::unique_ptr<Contender>> all;
  if (subject.named.has_norm) {
    const auto add = [&](NormContender::Kind kind, Contender* all_reduce, const std::string& name,
                         verbena_ops_algorithm algorithm) {
      all.push_back(std::make_unique<NormContender>(library_, ours_->ops, norm_, subject.named, kind,
                                                    all_reduce, name,
                                                    verbena_ops_choice{algorithm, 0, 0, 0}));
    };
    // The contender with which the others are compared comes first. Separate calls of an all-reduce and a
    // norm do not compute their input from the outputs of experts, so they are no contender.
    if (!subject.named.is_finalized)
      add(NormContender::Kind::kApart, chosen_.get(), "verbena/apart", VERBENA_OPS_AUTO);
    add(NormContender::Kind::kFused, nullptr, "verbena/auto", VERBENA_OPS_AUTO);
    if (plan_.hosts > 1) return all;
    add(NormContender::Kind::kFused, nullptr, "verbena/one-shot", VERBENA_OPS_ONE_SHOT);
    if (subject.named.is_finalized)
      add(NormContender::Kind::kFused, nullptr, "verbena/several-kernels", VERBENA_OPS_TWO_SHOT);
    return all;
  }
  const verbena_ops_algorithm codec = subject.named.codec;
  for (verbena_ops_choice choice :
       plan_.hosts > 1 ? list_choices_across_hosts(codec, bytes, plan_.blocks)
       : codec != VERBENA_OPS_AUTO
           ? list_coded_choices(codec, bytes, plan_.blocks)
           : list_choices(subject.operation, bytes, plan_.count_ranks, plan_.blocks)) {
    if (choice.algorithm != VERBENA_OPS_AUTO && !plan_.all_shapes) continue;
    if (subject.named.is_lossless) choice.algorithm = VERBENA_OPS_LOSSLESS;
    all.push_back(std::make_unique<OurContender>(library_, ours_->ops, choice, codec));
  }
  return all;
}

void Rank::expect_no_error() {
  char text[512] = "";
  const verbena_result result = library_.verbena_ops_get_error(ours_->ops, text, sizeof(text));
  if (result != VERBENA_SUCCESS) throw ToolError(text);
}

// Elements that are not as expected; the first of them are reported, with the rank that produced them.
uint64_t Rank::count_wrong(const Bytes& output, const Bytes& expected, uint64_t element,
                           const std::string& maker) const {
  constexpr uint64_t kTold = 4;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < expected.size(); i += element) {
    if (std::memcmp(output.data() + i, expected.data() + i, element) == 0) continue;
    if (wrong++ >= kTold) continue;
    uint64_t got = 0, wanted = 0;
    std::memcpy(&got, output.data() + i, element);
    std::memcpy(&wanted, expected.data() + i, element);
    std::fprintf(stderr, "rank %u: %s: element %llu is 0x%llx, expected 0x%llx\n", plan_.rank, maker.c_str(),
                 static_cast<unsigned long long>(i / element), static_cast<unsigned long long>(got),
                 static_cast<unsigned long long>(wanted));
  }
  return wrong;
}

Rank::Placement Rank::draw_placement(const Subject& subject, uint32_t round) const {
  std::mt19937 random(round * 16 + plan_.rank);
  const auto draw = [&] { return random() % 2 == 0 ? 0 : get_element_bytes(subject.type) * (random() % 16); };
  Placement placement{draw(), draw(), random() % 4 == 0 && subject.operation == VERBENA_OPS_ALL_REDUCE};
  if (placement.is_in_place) placement.output_offset = placement.input_offset;
  return placement;
}

uint64_t Rank::check_one(Contender& contender, const Subject& subject, uint64_t bytes,
                         const Placement& placement, uint32_t round) {
  const uint64_t element = get_element_bytes(subject.type);
  const Work work{subject.operation,
                  first_ + placement.input_offset,
                  (placement.is_in_place ? first_ : second_) + placement.output_offset,
                  bytes / element,
                  subject.type,
                  round % plan_.count_ranks};
  const Bytes input = make_input(subject.type, input_bytes(subject, bytes) / element, plan_.rank, round);
  gpu_.fill_words(second_, 0x5a5a5a5a, room_bytes_ / 4);
  gpu_.fill_words(first_, 0x5a5a5a5a, room_bytes_ / 4);
  if (!input.empty()) gpu_.write(work.from, input.data(), input.size(), plan_.timeout_s);
  contender.enqueue(work, gpu_.stream());
  // For operations with a norm: the first contender's result of a separate all-reduce and norm.
  const bool is_first = subject.named.has_norm && !normed_;
  const Bytes expected = subject.named.has_norm && !is_first ? *normed_ : expect(subject, work.count, round);
  Bytes output(expected.size() + kMarginBytes);
  gpu_.read(output.data(), work.to, output.size(), plan_.timeout_s);
  expect_no_error();
  uint64_t wrong = 0;
  const bool is_coded = subject.named.codec != VERBENA_OPS_AUTO;
  if (!is_coded && !is_first) {
    wrong = count_wrong(output, expected, element,
                        contender.name() + ", round " + std::to_string(round) + ", offsets " +
                            std::to_string(placement.input_offset) + " and " +
                            std::to_string(placement.output_offset) +
                            (placement.is_in_place ? ", in place" : ""));
  }
  if (is_coded) {
    std::vector<Bytes> terms;
    for (uint32_t rank = 0; rank < plan_.count_ranks; ++rank)
      terms.push_back(make_input(subject.type, work.count, rank, round));
    wrong += measure_error(subject.type, {output.begin(), output.end() - kMarginBytes}, expected, terms) >
             kMaxCodedError;
  }
  if (is_first) normed_ = Bytes(output.begin(), output.end() - kMarginBytes);
  for (uint64_t i = expected.size(); i < output.size(); ++i) wrong += output[i] != 0x5a;
  output.resize(expected.size());
  // Results of a reduction are the same on all ranks.
  if (subject.operation == VERBENA_OPS_ALL_REDUCE) {
    char hash[32];
    std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(hash_bytes(output)));
    tell("bits " + std::string(hash) + " " + contender.name() + " " + subject.type_name + " " +
         std::to_string(bytes) + " " + std::to_string(round));
  }
  return wrong;
}

uint64_t Rank::cut_rows(const Subject& subject, uint64_t bytes) const {
  const uint64_t row_bytes = subject.named.has_norm ? plan_.hidden * get_element_bytes(subject.type) : 1;
  return std::max(row_bytes, bytes / row_bytes * row_bytes);
}

// Operations of a graph, each on the result of the one before: wrong where one begins too early.
uint64_t Rank::check_chain(Contender& contender, uint64_t bytes) {
  constexpr unsigned kChain = 6;
  const uint64_t count = bytes / sizeof(int32_t);
  const Work work{VERBENA_OPS_ALL_REDUCE, first_, second_, count, VERBENA_OPS_INT32, 0};
  const Bytes input = make_input(VERBENA_OPS_INT32, count, plan_.rank, 7);
  Bytes expected =
      make_reduced(VERBENA_OPS_INT32, VERBENA_OPS_SUM, count, plan_.count_ranks, 7, plan_.count_ranks);
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t number = 0;
    std::memcpy(&number, expected.data() + i * sizeof(number), sizeof(number));
    for (unsigned k = 1; k < kChain; ++k) number *= plan_.count_ranks;
    std::memcpy(expected.data() + i * sizeof(number), &number, sizeof(number));
  }
  const auto graph = make_graph(kChain, [&](unsigned i) { enqueue_chain(contender, work, i); });
  uint64_t wrong = 0;
  for (int replay = 0; replay < 3; ++replay) {
    gpu_.write(first_, input.data(), input.size(), plan_.timeout_s);
    graph->launch();
    Bytes output(input.size());
    gpu_.read(output.data(), first_, output.size(), plan_.timeout_s);
    expect_no_error();
    wrong += count_wrong(output, expected, sizeof(int32_t),
                         contender.name() + ", replay " + std::to_string(replay) + " of a chain");
  }
  return wrong;
}

void Rank::check_all() {
  uint32_t round = 0;
  for (const Subject& subject : list_subjects()) {
    const uint64_t element = get_element_bytes(subject.type);
    const auto has_room = [&](uint64_t bytes, uint64_t more) {
      return std::max(input_bytes(subject, bytes), output_bytes(subject, bytes)) + more + kMarginBytes <=
             room_bytes_;
    };
    std::vector<uint64_t> sizes = plan_.sizes;
    const bool has_norm = subject.named.has_norm;
    for (uint64_t& bytes : sizes) bytes = cut_rows(subject, bytes);
    // Odd ones: a single element, prime numbers of them.
    for (const uint64_t count : {1, 17, 1021, 8191, 65537})
      if (!has_norm && has_room(count * element, 64)) sizes.push_back(count * element);
    for (const uint64_t bytes : sizes) {
      uint64_t wrong = 0;
      normed_.reset();
      const uint32_t first_round = round;
      for (const auto& contender : list_contenders(subject, bytes)) {
        if (has_norm) round = first_round;
        const bool is_free = !has_norm && !contender->needs_one_place() && has_room(bytes, 64);
        wrong += check_one(*contender, subject, bytes, is_free ? draw_placement(subject, round) : Placement{},
                           round);
        ++round;
      }
      tell("checked " + std::to_string(wrong) + " " + subject.operation_name + " " + subject.type_name + " " +
           std::to_string(bytes) + " bytes, by every algorithm");
    }
  }
  for (const uint64_t bytes : plan_.sizes) {
    uint64_t wrong = 0;
    const Subject sums{"all_reduce", "i32", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_INT32,
                       find_operation("all_reduce")};
    for (const auto& contender : list_contenders(sums, bytes)) wrong += check_chain(*contender, bytes);
    tell("checked " + std::to_string(wrong) + " all_reduce i32 " + std::to_string(bytes) +
         " bytes, in graphs, each with the result of the previous call, by every algorithm");
  }
}

// Each operation uses what the one before it has made.
void Rank::enqueue_chain(Contender& contender, Work work, unsigned index) {
  const uint64_t bytes = work.count * get_element_bytes(work.type);
  if (index % 2 == 1) std::swap(work.from, work.to);
  work.root = index % plan_.count_ranks;
  if (work.operation == VERBENA_OPS_ALL_GATHER && index > 0)
    work.from += (plan_.rank + 1) % plan_.count_ranks * bytes;
  contender.enqueue(work, gpu_.stream());
}

std::unique_ptr<Graph> Rank::make_graph(unsigned chain, const std::function<void(unsigned)>& enqueue) {
  return std::make_unique<Graph>(gpu_, [&] {
    for (unsigned i = 0; i < chain; ++i) enqueue(i);
  });
}

// All ranks begin together: after a collective that no rank leaves before the last rank has come, and with
// everything in the stream by then.
double Rank::time_us(const std::function<void()>& launch) {
  const verbena_ops_choice choice{plan_.hosts > 1 ? VERBENA_OPS_AUTO : VERBENA_OPS_ONE_SHOT, 1, 32, 0};
  gpu_.copy(first_, numbers_, room_bytes_);
  check(library_.verbena_ops_pause(ours_->ops, kPause_ns, gpu_.stream()), "verbena_ops_pause");
  check(library_.verbena_ops_all_reduce(ours_->ops, reinterpret_cast<void*>(barrier_),
                                        reinterpret_cast<void*>(barrier_), kBarrierElements,
                                        VERBENA_OPS_FLOAT32, VERBENA_OPS_SUM, &choice, gpu_.stream()),
        "verbena_ops_all_reduce");
  gpu_.mark(0);
  launch();
  gpu_.mark(1);
  gpu_.wait(plan_.timeout_s);
  return gpu_.measure_us(0);
}

void Rank::measure_graphs(std::vector<Entry>& entries) {
  // Contenders take turns, so that what changes on the machine changes for all.
  for (unsigned sample = 0; sample <= plan_.repeats; ++sample) {
    for (Entry& entry : entries) {
      const double shorter_us = time_us([&] { entry.shorter->launch(); });
      const double longer_us = time_us([&] { entry.longer->launch(); });
      if (sample == 0) continue;
      entry.shorter_us.push_back(shorter_us);
      entry.longer_us.push_back(longer_us);
    }
  }
}

std::vector<double> Rank::agree(std::vector<double> values) {
  const uint64_t bytes = values.size() * sizeof(float);
  std::vector<float> numbers(values.begin(), values.end());
  if (bytes > room_bytes_)
    throw ToolError(
        "the buffers are too small to compare this number of times between the ranks. The buffers have the "
        "largest of --sizes; use larger --sizes");
  gpu_.write(first_, numbers.data(), bytes, plan_.timeout_s);
  check(library_.verbena_ops_all_reduce(ours_->ops, reinterpret_cast<void*>(first_),
                                        reinterpret_cast<void*>(first_), numbers.size(), VERBENA_OPS_FLOAT32,
                                        VERBENA_OPS_MAX, nullptr, gpu_.stream()),
        "verbena_ops_all_reduce");
  gpu_.read(numbers.data(), first_, bytes, plan_.timeout_s);
  return {numbers.begin(), numbers.end()};
}

std::string join(const std::vector<double>& samples) {
  std::string text;
  for (const double sample : samples) text += " " + std::to_string(sample);
  return text;
}

double Rank::measure_slope(const std::function<void(unsigned)>& enqueue) {
  const auto shorter = make_graph(plan_.chain, enqueue), longer = make_graph(2 * plan_.chain, enqueue);
  std::vector<double> shorter_us, longer_us;
  for (unsigned sample = 0; sample < plan_.repeats; ++sample) {
    shorter_us.push_back(time_us([&] { shorter->launch(); }));
    longer_us.push_back(time_us([&] { longer->launch(); }));
  }
  return (compute_median(longer_us) - compute_median(shorter_us)) / plan_.chain;
}

// Measures the fastest algorithm of a size with single calls, and with a rank that starts late.
void Rank::measure_best(const std::string& key, Entry& entry, const Work& work) {
  if (plan_.is_quick) return;
  double host_us = 0;
  const double eager_us = time_us([&] {
    const int64_t begin_ns = now_ns();
    for (unsigned i = 0; i < kEagerCalls; ++i) enqueue_chain(*entry.contender, work, i);
    host_us = static_cast<double>(now_ns() - begin_ns) / 1000;
  });
  tell("figure eager/" + key + join({eager_us / kEagerCalls}));
  tell("figure host/" + key + join({host_us / kEagerCalls}));
  for (const uint64_t late_ns : kLate_ns) {
    const bool is_late = plan_.rank == 0;
    const auto pause = [&] {
      if (is_late) check(library_.verbena_ops_pause(ours_->ops, late_ns, gpu_.stream()), "verbena_ops_pause");
    };
    const double with_us = measure_slope([&](unsigned i) {
      pause();
      enqueue_chain(*entry.contender, work, i);
    });
    double alone_us = 0;
    if (is_late) alone_us = measure_slope([&](unsigned) { pause(); });
    // A rank that is not late takes part in each sample's collective all the same.
    if (!is_late) alone_us = measure_slope([](unsigned) {});
    tell("figure late" + std::to_string(late_ns / 1000) + "/" + key +
         join({with_us, is_late ? alone_us : 0}));
  }
}

void Rank::measure_size(const Subject& subject, uint64_t bytes) {
  const verbena_ops_type type = subject.type;
  const Work work{subject.operation, first_, second_, bytes / get_element_bytes(type), type, 0};
  std::vector<Entry> entries;
  const auto add_norm = [&](NormContender::Kind kind, Contender& all_reduce, const std::string& name) {
    entries.push_back({std::make_shared<NormContender>(library_, ours_->ops, norm_, subject.named, kind,
                                                       &all_reduce, name)});
  };
  for (auto& contender : list_contenders(subject, bytes)) entries.push_back({std::move(contender)});
  if (nccl_ && find_nccl_type(type) >= 0) {
    if (subject.named.has_norm)
      add_norm(NormContender::Kind::kApart, *nccl_, nccl_->name());
    else
      entries.push_back({nccl_});
  }
  if (subject.named.has_norm) add_norm(NormContender::Kind::kBare, *chosen_, "all-reduce-alone");
  for (Entry& entry : entries) {
    const auto enqueue = [&](unsigned i) { enqueue_chain(*entry.contender, work, i); };
    enqueue(0);  // loads what is loaded late
    gpu_.wait(plan_.timeout_s);
    entry.shorter = make_graph(plan_.chain, enqueue);
    entry.longer = make_graph(2 * plan_.chain, enqueue);
  }
  measure_graphs(entries);
  expect_no_error();
  const std::string prefix =
      subject.operation_name + "/" + subject.type_name + "/" + std::to_string(bytes) + "/";
  std::vector<double> slopes_us;
  for (const Entry& entry : entries) {
    const std::string key = prefix + entry.contender->name();
    tell("figure shorter/" + key + join(entry.shorter_us));
    tell("figure longer/" + key + join(entry.longer_us));
    slopes_us.push_back(entry.slope_us(plan_.chain));
  }
  slopes_us = agree(slopes_us);
  size_t best = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const bool is_ours = entries[i].contender->name().rfind("verbena/", 0) == 0;
    if (is_ours && slopes_us[i] < slopes_us[best]) best = i;
    if (!is_ours) measure_best(prefix + entries[i].contender->name(), entries[i], work);
  }
  measure_best(prefix + entries[best].contender->name(), entries[best], work);
  expect_no_error();
}

// Makes the data with which each sample begins: bfloat16 elements of a normal distribution, because the time
// of quantising and lossless kernels depends on the values. From kDrawn elements on they repeat.
void Rank::make_numbers() {
  constexpr size_t kDrawn = 1 << 20;
  std::vector<uint16_t> halves(room_bytes_ / sizeof(uint16_t));
  std::minstd_rand random(plan_.rank + 1);
  std::normal_distribution<float> normal(0, kTiny);
  for (size_t i = 0; i < halves.size(); ++i) {
    const auto bits = i < kDrawn ? std::bit_cast<uint32_t>(normal(random)) : 0;
    halves[i] = i < kDrawn ? static_cast<uint16_t>(bits >> 16) : halves[i - kDrawn];
  }
  numbers_ = gpu_.allocate(room_bytes_);
  gpu_.write(numbers_, halves.data(), room_bytes_, plan_.timeout_s);
}

void Rank::measure_all() {
  make_numbers();
  for (const Subject& subject : list_subjects())
    for (const uint64_t bytes : plan_.sizes) measure_size(subject, cut_rows(subject, bytes));
}

uint64_t Rank::replay(Graph& graph, uint64_t bytes, const std::function<void(uint64_t, char*)>& prepare,
                      const std::function<uint64_t(uint64_t, const char*)>& count_wrong) {
  constexpr uint64_t kBatch = 64;
  if (room_bytes_ < bytes) throw ToolError("--soak needs a size of " + format_size(bytes) + "iB or more");
  void* pinned = nullptr;
  driver_.check(driver_.cuMemHostAlloc(&pinned, 2 * kBatch * bytes, CU_MEMHOSTALLOC_PORTABLE),
                "cuMemHostAlloc");
  char *const inputs = static_cast<char*>(pinned), *const outputs = inputs + kBatch * bytes;
  uint64_t wrong = 0;
  for (uint64_t done = 0; done < plan_.soak; done += kBatch) {
    const uint64_t batch = std::min(kBatch, plan_.soak - done);
    for (uint64_t k = 0; k < batch; ++k) {
      prepare(done + k, inputs + k * bytes);
      driver_.check(driver_.cuMemcpyHtoDAsync_v2(first_, inputs + k * bytes, bytes, gpu_.stream()),
                    "cuMemcpyHtoD");
      graph.launch();
      driver_.check(driver_.cuMemcpyDtoHAsync_v2(outputs + k * bytes, second_, bytes, gpu_.stream()),
                    "cuMemcpyDtoH");
    }
    gpu_.wait(plan_.timeout_s);
    for (uint64_t k = 0; k < batch; ++k) wrong += count_wrong(done + k, outputs + k * bytes);
  }
  expect_no_error();
  return wrong;
}

void Rank::soak_coded(const Named& named) {
  constexpr uint64_t kBytes = 16384;
  constexpr uint32_t kOnes = 0x3f803f80;  // two of bfloat16
  const uint32_t blocks = std::min(plan_.blocks, 16U);
  OurContender contender(library_, ours_->ops, {named.codec, blocks, 512, 0}, named.codec);
  const uint64_t count = kBytes / get_element_bytes(VERBENA_OPS_BFLOAT16);
  Graph graph(gpu_, [&] {
    contender.enqueue({VERBENA_OPS_ALL_REDUCE, first_, second_, count, VERBENA_OPS_BFLOAT16, 0},
                      gpu_.stream());
  });
  const auto repeat = [](uint32_t word, char* to) {
    for (uint64_t i = 0; i < kBytes; i += sizeof(word)) std::memcpy(to + i, &word, sizeof(word));
  };
  const float ranks = static_cast<float>(plan_.count_ranks);  // at most 16: exact
  uint32_t bits = 0;
  std::memcpy(&bits, &ranks, sizeof(bits));
  Bytes sum_of_ones(kBytes);
  repeat((bits & 0xffff0000U) | bits >> 16, reinterpret_cast<char*>(sum_of_ones.data()));
  const Bytes zeros(kBytes);
  const uint64_t wrong = replay(
      graph, kBytes, [&](uint64_t index, char* input) { repeat(index % 2 == 0 ? 0 : kOnes, input); },
      [&](uint64_t index, const char* output) {
        return uint64_t{std::memcmp(output, (index % 2 == 0 ? zeros : sum_of_ones).data(), kBytes) != 0};
      });
  tell("checked " + std::to_string(wrong) + " " + std::to_string(plan_.soak) + " times " + named.name +
       " on alternating zeros and ones");
}

void Rank::call_at_random() {
  const int64_t begin_ns = now_ns();
  const uint64_t wrong = run_random_calls(plan_, library_, ours_->ops, gpu_, {first_, second_, room_bytes_});
  expect_no_error();
  tell("checked " + std::to_string(wrong) + " " + std::to_string(plan_.random) + " random calls, seed " +
       std::to_string(plan_.seed) + ", in " + std::to_string((now_ns() - begin_ns) / 1'000'000) + " ms");
  run_random_moe(make_moe_ground(), plan_.random / kCallsPerMoeRound);
}

MoeGround Rank::make_moe_ground() {
  return {plan_,
          library_,
          gpu_,
          ours_->context.handle(),
          ours_->team.handle(),
          [&](const std::function<void()>& launch) { return time_us(launch); },
          [&](std::vector<double> values) { return agree(std::move(values)); }};
}

void Rank::exchange_tokens() {
  make_numbers();
  run_moe(make_moe_ground());
}

// One graph, replayed with other data each time, every element compared.
void Rank::soak() {
  bool has_coded = false;
  for (const std::string& name : plan_.operations) {
    const Named named = find_operation(name);
    if (named.codec == VERBENA_OPS_AUTO) continue;
    has_coded = true;
    soak_coded(named);
  }
  if (has_coded) return;
  constexpr uint64_t kCount = 2048, kBytes = kCount * sizeof(uint32_t);
  OurContender chosen(library_, ours_->ops, {VERBENA_OPS_AUTO, 0, 0, 0});
  Graph graph(gpu_, [&] {
    chosen.enqueue({VERBENA_OPS_ALL_REDUCE, first_, second_, kCount, VERBENA_OPS_INT32, 0}, gpu_.stream());
  });
  const auto number = [](uint64_t replay, uint64_t rank, uint64_t i) {
    return static_cast<uint32_t>(replay * 0x9e3779b1u + rank * 0x85ebca77u + i * 2654435769u);
  };
  const int64_t begin_ns = now_ns();
  const uint64_t wrong = replay(
      graph, kBytes,
      [&](uint64_t index, char* input) {
        auto* const numbers = reinterpret_cast<uint32_t*>(input);
        for (uint64_t i = 0; i < kCount; ++i) numbers[i] = number(index, plan_.rank, i);
      },
      [&](uint64_t index, const char* output) {
        uint64_t all = 0;
        for (uint64_t i = 0; i < kCount; ++i) {
          uint32_t sum = 0;
          for (unsigned rank = 0; rank < plan_.count_ranks; ++rank) sum += number(index, rank, i);
          all += reinterpret_cast<const uint32_t*>(output)[i] != sum;
        }
        return all;
      });
  tell("checked " + std::to_string(wrong) + " " + std::to_string(plan_.soak) +
       " replays of one graph with other data each time, in " +
       std::to_string((now_ns() - begin_ns) / 1'000'000) + " ms");
}

}  // namespace

void run_rank(const CollPlan& plan) {
  Rank rank(plan);
  if (!plan.moe_tokens.empty()) return rank.exchange_tokens();
  if (plan.checks) rank.check_all();
  if (plan.measures) rank.measure_all();
  if (plan.soak != 0) rank.soak();
  if (plan.random != 0) rank.call_at_random();
}

}  // namespace verbena::tools::coll
