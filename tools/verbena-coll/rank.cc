// One rank: checks every element of every way, then measures all contenders under one clock.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/gpu.h"
#include "common/table.h"
#include "verbena-coll/contenders.h"
#include "verbena-coll/numbers.h"
#include "verbena-coll/plan.h"
#include "verbena/verbena.hpp"

namespace verbena::tools::coll {
namespace {

constexpr uint64_t kPause_ns = 60'000;  // the host puts a sample's work into the stream meanwhile
constexpr uint64_t kMarginBytes = 256;  // behind an output: nobody writes there
constexpr uint64_t kBarrierElements = 8;
constexpr unsigned kEagerCalls = 100;
constexpr uint64_t kLate_ns[] = {5'000, 50'000};
constexpr uint32_t kTinyInAllTypes =
    0x21802180u;  // 2^-60 in bf16, as little in f32: sums of a chain stay finite

void tell(const std::string& line) {
  dprintf(kControlDescriptor, "%s\n", line.c_str());
}

class Rank {
 public:
  explicit Rank(const RankPlan& plan);
  ~Rank();
  void check_all();
  void measure_all();
  void soak();

 private:
  // The context of ranks, and our communicator over it.
  struct Ours {
    Ours(const RankPlan& plan, const OpsLibrary& library);
    ~Ours() { library.verbena_ops_destroy(ops); }
    const OpsLibrary& library;
    SymmetricContext context;
    SymmetricTeam team;
    verbena_ops* ops = nullptr;
  };
  struct Entry {
    std::unique_ptr<Contender> contender;
    std::unique_ptr<Graph> shorter, longer;
    std::vector<double> shorter_us, longer_us;
    double slope_us(unsigned chain) const {
      return (compute_median(longer_us) - compute_median(shorter_us)) / chain;
    }
  };

  std::vector<std::unique_ptr<Contender>> list_contenders(uint64_t bytes);
  uint64_t check_one(Contender& contender, verbena_ops_type type, uint64_t bytes, uint64_t offset,
                     bool is_in_place, uint32_t round);
  void expect_no_error();
  void measure_size(const std::string& type_name, verbena_ops_type type, uint64_t bytes);
  // `chain` operations, each on the result of the one before.
  std::unique_ptr<Graph> make_graph(unsigned chain, const std::function<void(unsigned)>& enqueue);
  double time_us(const std::function<void()>& launch);
  void measure_graphs(std::vector<Entry>& entries);
  void measure_best(const std::string& key, Entry& entry, const Work& work);
  double measure_slope(const std::function<void(unsigned)>& enqueue);
  // The largest of all ranks, for each.
  std::vector<double> agree(std::vector<double> values);
  void enqueue_chain(Contender& contender, Work work, unsigned index);

  const RankPlan plan_;
  const CudaDriver& driver_;
  Gpu gpu_;
  OpsLibrary library_;
  std::unique_ptr<Ours> ours_;
  std::unique_ptr<NcclContender> nccl_;
  CUdeviceptr first_ = 0, second_ = 0, barrier_ = 0;
  uint64_t room_bytes_ = 0;
};

const CudaDriver& need_driver() {
  std::string why;
  const CudaDriver* const driver = load_cuda_driver(why);
  if (driver == nullptr) throw ToolError(why);
  return *driver;
}

verbena_unique_id parse_id(const std::string& digits) {
  verbena_unique_id id{};
  from_digits(digits, id.bytes, sizeof(id.bytes));
  return id;
}

Rank::Ours::Ours(const RankPlan& plan, const OpsLibrary& of)
    : library(of), context(parse_id(plan.id), plan.rank, plan.count_ranks), team(context.world()) {
  verbena_ops_options options{};
  options.blocks = plan.blocks;
  options.lets_next_start = plan.early ? 1 : 0;
  check(library.verbena_ops_create(context.handle(), team.handle(), &options, &ops), "verbena_ops_create");
}

Rank::Rank(const RankPlan& plan)
    : plan_(plan), driver_(need_driver()), gpu_(driver_, plan.gpu), library_(load_ops_library(plan.library)) {
  ours_ = std::make_unique<Ours>(plan_, library_);
  room_bytes_ = *std::max_element(plan_.sizes.begin(), plan_.sizes.end()) + 2 * kMarginBytes;
  first_ = gpu_.allocate(room_bytes_);
  second_ = gpu_.allocate(room_bytes_);
  barrier_ = gpu_.allocate(kBarrierElements * sizeof(float));
  gpu_.fill_words(barrier_, 0, kBarrierElements);
  for (const std::string& name : plan_.against)
    if (name == "nccl")
      nccl_ =
          std::make_unique<NcclContender>(plan_.nccl_library, plan_.nccl_id, plan_.rank, plan_.count_ranks);
}

Rank::~Rank() {
  ours_.reset();
}

std::vector<std::unique_ptr<Contender>> Rank::list_contenders(uint64_t bytes) {
  std::vector<std::unique_ptr<Contender>> all;
  for (const verbena_ops_choice& choice : list_choices(bytes, plan_.count_ranks, plan_.blocks)) {
    if (choice.algorithm == VERBENA_OPS_AUTO || plan_.all_shapes)
      all.push_back(std::make_unique<OurContender>(library_, ours_->ops, choice));
  }
  return all;
}

void Rank::expect_no_error() {
  char text[512] = "";
  const verbena_result result = library_.verbena_ops_get_error(ours_->ops, text, sizeof(text));
  if (result != VERBENA_SUCCESS) throw ToolError(text);
}

uint64_t Rank::check_one(Contender& contender, verbena_ops_type type, uint64_t bytes, uint64_t offset,
                         bool is_in_place, uint32_t round) {
  const uint64_t element = get_element_bytes(type);
  const Work work{first_ + offset, (is_in_place ? first_ : second_) + offset, bytes / element, type};
  const Bytes input = make_input(type, work.count, plan_.rank, round);
  gpu_.fill_words(second_, 0x5a5a5a5a, room_bytes_ / 4);
  gpu_.fill_words(first_, 0x5a5a5a5a, room_bytes_ / 4);
  if (!input.empty()) gpu_.write(work.from, input.data(), input.size(), plan_.timeout_s);
  contender.enqueue(work, gpu_.stream());
  Bytes output(input.size() + kMarginBytes);
  gpu_.read(output.data(), work.to, output.size(), plan_.timeout_s);
  expect_no_error();
  const Bytes expected = make_sum(type, work.count, plan_.count_ranks, round);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < work.count; ++i)
    wrong += std::memcmp(output.data() + i * element, expected.data() + i * element, element) != 0;
  for (uint64_t i = input.size(); i < output.size(); ++i) wrong += output[i] != 0x5a;
  output.resize(input.size());
  char hash[32];
  std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(hash_bytes(output)));
  tell("bits " + std::string(hash) + " " + contender.name() + " " + std::to_string(bytes) + " " +
       std::to_string(round));
  return wrong;
}

void Rank::check_all() {
  uint32_t round = 0;
  for (const std::string& type_name : plan_.types) {
    const verbena_ops_type type = find_type(type_name);
    const uint64_t element = get_element_bytes(type);
    std::vector<uint64_t> sizes = plan_.sizes;
    // Odd ones: a single element, prime numbers of them.
    for (const uint64_t count : {1, 17, 1021, 8191, 65537})
      if (count * element < room_bytes_ - 2 * kMarginBytes) sizes.push_back(count * element);
    for (const uint64_t bytes : sizes) {
      uint64_t wrong = 0;
      for (const auto& contender : list_contenders(bytes)) {
        const bool is_odd = round % 3 == 1;
        const bool has_room = bytes + 2 * kMarginBytes <= room_bytes_ - 64;
        wrong += check_one(*contender, type, bytes, is_odd && has_room ? element * (round % 7) : 0,
                           round % 4 == 3, round);
        ++round;
      }
      tell("checked " + std::to_string(wrong) + " all_reduce " + type_name + " " + std::to_string(bytes) +
           " bytes, every way");
    }
  }
}

void Rank::enqueue_chain(Contender& contender, Work work, unsigned index) {
  if (index % 2 == 1) std::swap(work.from, work.to);
  contender.enqueue(work, gpu_.stream());
}

std::unique_ptr<Graph> Rank::make_graph(unsigned chain, const std::function<void(unsigned)>& enqueue) {
  return std::make_unique<Graph>(gpu_, [&] {
    for (unsigned i = 0; i < chain; ++i) enqueue(i);
  });
}

// All ranks begin together: behind a collective that none leaves before the last one has come, and with
// everything in the stream by then.
double Rank::time_us(const std::function<void()>& launch) {
  const verbena_ops_choice choice{VERBENA_OPS_ONE_SHOT_16, 1, 32, 0};
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
  if (bytes > room_bytes_) throw ToolError("more to agree on than there is room for: larger --sizes");
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

// What the best of a size costs when calls come one by one, and when a rank comes late.
void Rank::measure_best(const std::string& key, Entry& entry, const Work& work) {
  double host_us = 0;
  const double eager_us = time_us([&] {
    const int64_t begin_ns = now_ns();
    for (unsigned i = 0; i < kEagerCalls; ++i) enqueue_chain(*entry.contender, work, i);
    host_us = static_cast<double>(now_ns() - begin_ns) / 1000;
  });
  tell("figure eager " + key + join({eager_us / kEagerCalls}));
  tell("figure host " + key + join({host_us / kEagerCalls}));
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
    tell("figure late" + std::to_string(late_ns / 1000) + " " + key +
         join({with_us, is_late ? alone_us : 0}));
  }
}

void Rank::measure_size(const std::string& type_name, verbena_ops_type type, uint64_t bytes) {
  const Work work{first_, second_, bytes / get_element_bytes(type), type};
  std::vector<Entry> entries;
  for (auto& contender : list_contenders(bytes)) entries.push_back({std::move(contender), {}, {}, {}, {}});
  gpu_.fill_words(first_, kTinyInAllTypes, room_bytes_ / 4);
  gpu_.fill_words(second_, kTinyInAllTypes, room_bytes_ / 4);
  // NCCL is one contender for all sizes, and stays ours.
  struct Borrowed : Contender {
    explicit Borrowed(Contender& of) : contender(of) {}
    const std::string& name() const override { return contender.name(); }
    void enqueue(const Work& of, CUstream stream) override { contender.enqueue(of, stream); }
    Contender& contender;
  };
  if (nccl_ && find_nccl_type(type) >= 0)
    entries.push_back({std::make_unique<Borrowed>(*nccl_), {}, {}, {}, {}});
  for (Entry& entry : entries) {
    const auto enqueue = [&](unsigned i) { enqueue_chain(*entry.contender, work, i); };
    enqueue(0);  // loads what is loaded late
    gpu_.wait(plan_.timeout_s);
    entry.shorter = make_graph(plan_.chain, enqueue);
    entry.longer = make_graph(2 * plan_.chain, enqueue);
  }
  measure_graphs(entries);
  expect_no_error();
  const std::string prefix = "all_reduce/" + type_name + "/" + std::to_string(bytes) + "/";
  std::vector<double> slopes_us;
  for (const Entry& entry : entries) {
    const std::string key = prefix + entry.contender->name();
    tell("figure shorter " + key + join(entry.shorter_us));
    tell("figure longer " + key + join(entry.longer_us));
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

void Rank::measure_all() {
  for (const std::string& type_name : plan_.types)
    for (const uint64_t bytes : plan_.sizes) measure_size(type_name, find_type(type_name), bytes);
}

// One graph, replayed with other data each time, every element compared.
void Rank::soak() {
  constexpr uint64_t kCount = 2048, kBatch = 64;
  constexpr verbena_ops_type kType = VERBENA_OPS_INT32;
  constexpr uint64_t kBytes = kCount * sizeof(int32_t);
  struct Pinned {
    Pinned(const CudaDriver& of, uint64_t bytes) {
      of.check(of.cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    }
    int32_t* at(uint64_t i) { return static_cast<int32_t*>(memory) + i * kCount; }
    void* memory = nullptr;
  };
  if (room_bytes_ < kBytes) throw ToolError("--soak needs a size of 8 KiB or more");
  Pinned inputs(driver_, kBatch * kBytes), outputs(driver_, kBatch * kBytes);
  OurContender chosen(library_, ours_->ops, {VERBENA_OPS_AUTO, 0, 0, 0});
  Graph graph(gpu_, [&] { chosen.enqueue({first_, second_, kCount, kType}, gpu_.stream()); });
  const auto number = [](uint64_t replay, uint64_t rank, uint64_t i) {
    return static_cast<uint32_t>(replay * 0x9e3779b1u + rank * 0x85ebca77u + i * 2654435769u);
  };
  uint64_t wrong = 0;
  const int64_t begin_ns = now_ns();
  for (uint64_t done = 0; done < plan_.soak; done += kBatch) {
    const uint64_t batch = std::min(kBatch, plan_.soak - done);
    for (uint64_t k = 0; k < batch; ++k) {
      for (uint64_t i = 0; i < kCount; ++i)
        inputs.at(k)[i] = static_cast<int32_t>(number(done + k, plan_.rank, i));
      driver_.check(driver_.cuMemcpyHtoDAsync_v2(first_, inputs.at(k), kBytes, gpu_.stream()),
                    "cuMemcpyHtoD");
      graph.launch();
      driver_.check(driver_.cuMemcpyDtoHAsync_v2(outputs.at(k), second_, kBytes, gpu_.stream()),
                    "cuMemcpyDtoH");
    }
    gpu_.wait(plan_.timeout_s);
    for (uint64_t k = 0; k < batch; ++k) {
      for (uint64_t i = 0; i < kCount; ++i) {
        uint32_t sum = 0;
        for (unsigned rank = 0; rank < plan_.count_ranks; ++rank) sum += number(done + k, rank, i);
        wrong += static_cast<uint32_t>(outputs.at(k)[i]) != sum;
      }
    }
  }
  expect_no_error();
  tell("checked " + std::to_string(wrong) + " " + std::to_string(plan_.soak) +
       " replays of one graph with other data each time, in " +
       std::to_string((now_ns() - begin_ns) / 1'000'000) + " ms");
}

}  // namespace

void run_rank(const RankPlan& plan) {
  Rank rank(plan);
  if (plan.checks) rank.check_all();
  if (plan.measures) rank.measure_all();
  if (plan.soak != 0) rank.soak();
}

}  // namespace verbena::tools::coll
