// What launches of libverbena_ops.so do, on emulated GPUs: every kind of call by every way, of any size,
// place and number of ranks, several in a launch, launch after launch; and calls that cannot be.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/collectives/hosts.h"
#include "device/emulator/sanitizer.h"
#include "device/emulator/world.h"
#include "device/ops/run_calls.cuh"
#include "device/support/random.h"
#include "device/support/rank_counts.h"
#include "device/symm/fleet.h"

namespace verbena::device_test {
namespace {

using emulator::require;
using emulator::World;
using ops::Call;
using ops::GroupLaunch;
using ops::Kind;
using ops::Layout;
using ops::Lengths;

constexpr uint64_t kMargin = 64;  // bytes on both sides of an output that nobody writes
constexpr unsigned char kUntouched = 0x5a;

using Data = std::vector<unsigned char>;

struct alignas(16) Vector {
  unsigned char bytes[16];
};
// Of a rank, `offset` bytes from a multiple of 16.
class Tensor {
 public:
  Tensor() = default;
  Tensor(uint64_t length_bytes, uint64_t offset)
      : length_bytes_(length_bytes),
        begin_(kMargin + offset),
        memory_((length_bytes + 3 * kMargin) / 16 + 1) {
    std::memset(static_cast<void*>(memory_.data()), kUntouched, memory_.size() * 16);
  }
  char* data() { return reinterpret_cast<char*>(memory_.data()) + begin_; }
  void fill(const Data& data) {
    if (!data.empty()) std::memcpy(this->data(), data.data(), data.size());
  }
  Data read() {
    Data data(length_bytes_);
    if (length_bytes_ != 0) std::memcpy(data.data(), this->data(), length_bytes_);
    return data;
  }
  bool has_clean_margins() const {
    const auto* const all = reinterpret_cast<const unsigned char*>(memory_.data());
    for (uint64_t i = 0; i < memory_.size() * 16; ++i) {
      if ((i < begin_ || i >= begin_ + length_bytes_) && all[i] != kUntouched) return false;
    }
    return true;
  }

 private:
  uint64_t length_bytes_ = 0, begin_ = 0;
  std::vector<Vector> memory_;
};

// One call, on all ranks: what each has, what each gets.
struct Case {
  std::string name;
  std::vector<Data> inputs, outputs;  // [rank]; outputs as expected
  std::function<void(int32_t rank, Call& call)> describe;
  bool is_in_place = false;
};

struct Shape {
  int32_t ranks;
  uint32_t blocks, threads;
  uint64_t slot_bytes;
  int32_t of_host = 0;  // ranks that reach each other; 0: all
  bool are_mixed = false;
  bool repeats_puts = false;
  uint32_t cluster = 1;  // blocks
};

// Ranks with a workspace, which goes on from launch to launch.
template <typename Way>
class Ranks {
 public:
  explicit Ranks(const Shape& shape, uint64_t timeout_ns = 2'000'000'000)
      : shape_(shape),
        fleet_(shape.ranks, INT32_MAX, Hosts::measure(shape.ranks, shape.blocks, shape.slot_bytes)),
        hosts_(fleet_, shape.of_host == 0 ? shape.ranks : shape.of_host, shape.are_mixed),
        host_workspaces_(static_cast<size_t>(shape.ranks)),
        status_(static_cast<size_t>(shape.ranks), 0) {
    for (int32_t rank = 0; rank < shape.ranks; ++rank) fleet_.context(rank).timeout_ns = timeout_ns;
    if (shape.repeats_puts) hosts_.repeat_puts();
  }

  // All cases in one launch; "" or what is wrong.
  std::string run(uint64_t seed, const std::vector<Case>& cases, uint32_t chunk_bytes = 0) {
    const auto ranks = static_cast<size_t>(shape_.ranks);
    std::vector<std::vector<Tensor>> inputs(ranks), outputs(ranks);
    std::vector<GroupLaunch> launches(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      GroupLaunch& launch = launches[rank];
      launch = {};
      launch.workspace = hosts_.team_workspace(static_cast<int32_t>(rank), shape_.blocks, shape_.slot_bytes);
      launch.status = &status_[rank];
      launch.chunk_bytes = chunk_bytes;
      launch.count_calls = static_cast<uint32_t>(cases.size());
      place_in_hosts(static_cast<int32_t>(rank), launch);
      for (size_t i = 0; i < cases.size(); ++i) {
        const Case& one = cases[i];
        const uint64_t offset = (seed + i) % 3 == 0 ? 0 : (seed + rank + i) % 4 * 4;
        inputs[rank].emplace_back(one.inputs[rank].size(), offset);
        inputs[rank].back().fill(one.inputs[rank]);
        outputs[rank].emplace_back(one.outputs[rank].size(), (seed + rank + i) % 3 * 4);
        Call& call = launch.calls[i];
        call.input = inputs[rank].back().data();
        call.output = one.is_in_place ? inputs[rank].back().data() : outputs[rank].back().data();
        one.describe(static_cast<int32_t>(rank), call);
      }
    }
    got_.clear();
    World world(seed);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const auto run_rank = [&, rank] {
        if ((seed + rank) % 3 == 0) device::pause(500'000);
        ops::run_calls<Way>(launches[rank]);
        if (device::thread_index() == 0) hosts_.end();
      };
      world.add_grid(static_cast<uint32_t>(rank), shape_.blocks, shape_.threads, run_rank, shape_.cluster);
    }
    if (hosts_.count() > 1) hosts_.serve(world, seed, static_cast<uint32_t>(shape_.ranks) * shape_.blocks);
    if (const std::string failure = world.run(); !failure.empty()) return failure;
    for (size_t rank = 0; rank < ranks; ++rank)
      for (size_t i = 0; i < cases.size(); ++i)
        got_.push_back((cases[i].is_in_place ? inputs : outputs)[rank][i].read());
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (status_[rank] != 0)
        return "rank " + std::to_string(rank) + ": status " + std::to_string(status_[rank]);
      for (size_t i = 0; i < cases.size(); ++i) {
        Tensor& output = cases[i].is_in_place ? inputs[rank][i] : outputs[rank][i];
        const std::string where = cases[i].name + ", rank " + std::to_string(rank);
        const Data& got = got_[rank * cases.size() + i];
        const Data& want = cases[i].outputs[rank];
        for (size_t byte = 0; byte < want.size(); ++byte) {
          if (got[byte] != want[byte]) return where + ": byte " + std::to_string(byte) + " is wrong";
        }
        if (!output.has_clean_margins()) return where + ": a byte beside the output";
      }
    }
    return "";
  }

  void expect_outputs(uint64_t seed, const std::vector<Case>& cases, uint32_t chunk_bytes = 0) {
    EXPECT_EQ(run(seed, cases, chunk_bytes), "")
        << shape_.ranks << " ranks, hosts of " << shape_.of_host << ", seed " << seed;
  }

  int64_t status(int32_t rank) const { return status_[static_cast<size_t>(rank)]; }
  // The outputs of the last run, rank after rank.
  const std::vector<Data>& got() const { return got_; }
  const Hosts& hosts() const { return hosts_; }

 private:
  void place_in_hosts(int32_t rank, ops::Launch& launch) {
    SymmWorkspace<>& host = host_workspaces_[static_cast<size_t>(rank)];
    const device::HostPlaces places = hosts_.places(rank);
    if (places.hosts == 1) return;
    host = hosts_.host_workspace(rank, shape_.blocks, shape_.slot_bytes);
    launch.host = &host;
    launch.hosts = places.hosts;
    std::copy_n(places.members, shape_.ranks, launch.members);
  }

  const Shape shape_;
  Fleet fleet_;
  Hosts hosts_;
  std::vector<SymmWorkspace<>> host_workspaces_;
  std::vector<int64_t> status_;
  std::vector<Data> got_;
};

// ---- Cases, with their results computed plainly ----

Data draw(Random& random, uint64_t length_bytes) {
  Data data(length_bytes);
  for (unsigned char& byte : data) byte = static_cast<unsigned char>(random.between(0, 255));
  return data;
}
// Elements of a size, as floats: sums round in the shorter types.
template <typename T>
Data draw_numbers(Random& random, uint64_t count) {
  Data data(count * sizeof(T));
  for (uint64_t i = 0; i < count; ++i) {
    T number;
    if constexpr (std::is_same_v<T, int32_t>) {
      number = static_cast<int32_t>(random.between(0, UINT32_MAX));
    } else {
      number = device::narrow<T>(static_cast<float>(random.between(0, 4001)) / 13.0F - 150.0F);
    }
    std::memcpy(data.data() + i * sizeof(T), &number, sizeof(T));
  }
  return data;
}
template <typename T>
T take(const Data& data, uint64_t index) {
  T number;
  std::memcpy(&number, data.data() + index * sizeof(T), sizeof(T));
  return number;
}
template <typename T>
T reduce(const std::vector<T>& addends, device::Reduction reduction) {
  using device::Reduction;
  if constexpr (std::is_same_v<T, int32_t>) {
    int64_t result = addends[0];
    for (size_t i = 1; i < addends.size(); ++i) {
      if (reduction == Reduction::kMin) result = std::min<int64_t>(result, addends[i]);
      if (reduction == Reduction::kMax) result = std::max<int64_t>(result, addends[i]);
      if (reduction <= Reduction::kMean)
        result = static_cast<int32_t>(static_cast<uint32_t>(result) + static_cast<uint32_t>(addends[i]));
    }
    if (reduction == Reduction::kMean) result /= static_cast<int64_t>(addends.size());
    return static_cast<int32_t>(result);
  } else {
    float result = device::widen(addends[0]);
    for (size_t i = 1; i < addends.size(); ++i) {
      const float addend = device::widen(addends[i]);
      if (reduction == Reduction::kMin) result = std::min(result, addend);
      if (reduction == Reduction::kMax) result = std::max(result, addend);
      if (reduction <= Reduction::kMean) result += addend;
    }
    if (reduction == Reduction::kMean) result /= static_cast<float>(addends.size());
    return device::narrow<T>(result);
  }
}
template <typename T>
constexpr device::DataType kTypeOf = device::DataType::kFloat32;
template <>
constexpr device::DataType kTypeOf<device::Half> = device::DataType::kFloat16;
template <>
constexpr device::DataType kTypeOf<device::Bfloat16> = device::DataType::kBfloat16;
template <>
constexpr device::DataType kTypeOf<device::E4m3> = device::DataType::kE4m3;
template <>
constexpr device::DataType kTypeOf<int32_t> = device::DataType::kInt32;

// Elements `begin` to begin + count of all ranks' data, as they become together.
template <typename T>
Data reduce_all(const std::vector<Data>& inputs, uint64_t begin, uint64_t count,
                device::Reduction reduction) {
  Data result(count * sizeof(T));
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<T> addends;
    for (const Data& input : inputs) addends.push_back(take<T>(input, begin + i));
    const T number = reduce(addends, reduction);
    std::memcpy(result.data() + i * sizeof(T), &number, sizeof(T));
  }
  return result;
}

// The same in the order of hosts of so many ranks, rank r in host r modulo `hosts` where that is not 0.
template <typename T>
Data reduce_by_hosts(const std::vector<Data>& inputs, uint64_t begin, uint64_t count,
                     device::Reduction reduction, size_t of_host, bool are_mixed) {
  std::vector<Data> in_order;
  const size_t hosts = inputs.size() / of_host;
  for (size_t i = 0; i < inputs.size(); ++i)
    in_order.push_back(are_mixed ? inputs[i % of_host * hosts + i / of_host] : inputs[i]);
  using Sum = decltype(device::widen(T{}));
  Data result(count * sizeof(T));
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<Sum> sums;
    for (size_t rank = 0; rank < in_order.size(); rank += of_host) {
      std::vector<Sum> addends;
      for (size_t k = 0; k < of_host; ++k)
        addends.push_back(device::widen(take<T>(in_order[rank + k], begin + i)));
      sums.push_back(
          reduce(addends, reduction == device::Reduction::kMean ? device::Reduction::kSum : reduction));
    }
    Sum sum = reduce(sums, reduction == device::Reduction::kMean ? device::Reduction::kSum : reduction);
    if (reduction == device::Reduction::kMean) sum /= static_cast<Sum>(inputs.size());
    const T number = device::narrow<T>(sum);
    std::memcpy(result.data() + i * sizeof(T), &number, sizeof(T));
  }
  return result;
}

// In the order of the shape's hosts, or of ranks without one.
template <typename T>
Data reduce_in_order(const Shape* hosts, const std::vector<Data>& inputs, uint64_t begin, uint64_t count,
                     device::Reduction reduction) {
  return hosts == nullptr ? reduce_all<T>(inputs, begin, count, reduction)
                          : reduce_by_hosts<T>(inputs, begin, count, reduction,
                                               static_cast<size_t>(hosts->of_host), hosts->are_mixed);
}

template <typename T>
Case all_reduce(Random& random, int32_t ranks, uint64_t count, device::Reduction reduction,
                ops::Algorithm algorithm, bool is_in_place = false) {
  Case one{"all_reduce of " + std::to_string(count) + " numbers of " + std::to_string(sizeof(T)) + " bytes",
           {},
           {},
           {},
           is_in_place};
  for (int32_t rank = 0; rank < ranks; ++rank) one.inputs.push_back(draw_numbers<T>(random, count));
  one.outputs.assign(static_cast<size_t>(ranks), reduce_all<T>(one.inputs, 0, count, reduction));
  one.describe = [=](int32_t, Call& call) {
    call.kind = Kind::kAllReduce;
    call.algorithm = algorithm;
    call.type = static_cast<uint32_t>(kTypeOf<T>);
    call.reduction = static_cast<uint32_t>(reduction);
    call.length_bytes = count * sizeof(T);
  };
  return one;
}

template <typename T>
Case all_reduce_across(Random& random, const Shape& shape, uint64_t count, device::Reduction reduction,
                       bool is_in_place = false) {
  Case one = all_reduce<T>(random, shape.ranks, count, reduction, ops::Algorithm::kBulkTwoShot, is_in_place);
  one.outputs.assign(static_cast<size_t>(shape.ranks),
                     reduce_by_hosts<T>(one.inputs, 0, count, reduction, static_cast<size_t>(shape.of_host),
                                        shape.are_mixed));
  return one;
}

// A message of each pair: what is sent is what arrives.
struct Messages {
  Layout source, destination;
  uint64_t length_bytes, input_bytes, output_bytes;
};
Layout contiguous(uint64_t member_bytes) {
  return {member_bytes, 1, 1};
}
Layout by_rows(uint64_t row_bytes, int32_t ranks) {
  return {row_bytes, row_bytes, row_bytes * static_cast<uint64_t>(ranks)};
}
uint64_t place(const Layout& layout, uint64_t member, uint64_t offset) {
  if (layout.row_bytes == layout.stride_bytes) return member * layout.member_bytes + offset;
  return member * layout.member_bytes + offset / layout.row_bytes * layout.stride_bytes +
         offset % layout.row_bytes;
}
Case exchange(Random& random, const std::string& name, int32_t ranks, const Messages& messages,
              int32_t root = -1) {
  Case one{name + " of " + std::to_string(messages.length_bytes) + " bytes", {}, {}, {}};
  const auto size = static_cast<size_t>(ranks);
  for (size_t rank = 0; rank < size; ++rank) one.inputs.push_back(draw(random, messages.input_bytes));
  for (size_t rank = 0; rank < size; ++rank) {
    Data output(messages.output_bytes, kUntouched);
    for (size_t from = 0; from < size; ++from) {
      if (root >= 0 && from != static_cast<size_t>(root)) continue;
      for (uint64_t i = 0; i < messages.length_bytes; ++i)
        output[place(messages.destination, from, i)] = one.inputs[from][place(messages.source, rank, i)];
    }
    one.outputs.push_back(output);
  }
  one.describe = [=](int32_t, Call& call) {
    call.kind = Kind::kExchange;
    call.length_bytes = messages.length_bytes;
    call.source = messages.source;
    call.destination = messages.destination;
    call.lengths = root >= 0 ? Lengths::kFromRoot : Lengths::kEqual;
    call.root = root;
  };
  return one;
}
Case all_gather(Random& random, int32_t ranks, uint64_t rows, uint64_t row_bytes) {
  const uint64_t length = rows * row_bytes, all = length * static_cast<uint64_t>(ranks);
  return exchange(
      random, "all_gather", ranks,
      {{0, 1, 1}, rows == 1 ? contiguous(row_bytes) : by_rows(row_bytes, ranks), length, length, all});
}
Case all_to_all(Random& random, int32_t ranks, uint64_t length, uint64_t split_rows, uint64_t joined_rows) {
  const auto lay_out = [&](uint64_t rows) {
    return rows == 1 ? contiguous(length) : by_rows(length / rows, ranks);
  };
  const uint64_t all = length * static_cast<uint64_t>(ranks);
  return exchange(random, "all_to_all", ranks, {lay_out(split_rows), lay_out(joined_rows), length, all, all});
}
Case broadcast(Random& random, int32_t ranks, uint64_t length, int32_t root,
               ops::Algorithm algorithm = ops::Algorithm::kAuto, bool is_in_place = false) {
  Case one = exchange(random, "broadcast", ranks, {{0, 1, 1}, {0, 1, 1}, length, length, length}, root);
  one.is_in_place = is_in_place;
  one.describe = [algorithm, describe = one.describe](int32_t rank, Call& call) {
    describe(rank, call);
    call.algorithm = algorithm;
  };
  return one;
}
Case reduce_scatter(Random& random, int32_t ranks, uint64_t rows, uint64_t row_count,
                    device::Reduction reduction, const Shape* hosts = nullptr) {
  using T = device::Bfloat16;
  const auto size = static_cast<uint64_t>(ranks);
  Case one{"reduce_scatter of " + std::to_string(rows) + " rows of " + std::to_string(row_count), {}, {}, {}};
  for (uint64_t rank = 0; rank < size; ++rank)
    one.inputs.push_back(draw_numbers<T>(random, rows * row_count * size));
  for (uint64_t rank = 0; rank < size; ++rank) {
    Data output;
    for (uint64_t row = 0; row < rows; ++row) {
      const Data part =
          reduce_in_order<T>(hosts, one.inputs, (row * size + rank) * row_count, row_count, reduction);
      output.insert(output.end(), part.begin(), part.end());
    }
    one.outputs.push_back(output);
  }
  one.describe = [=](int32_t, Call& call) {
    call.kind = Kind::kExchangeReduce;
    call.type = static_cast<uint32_t>(kTypeOf<T>);
    call.reduction = static_cast<uint32_t>(reduction);
    call.length_bytes = rows * row_count * sizeof(T);
    const uint64_t row_bytes = row_count * sizeof(T);
    call.source = rows == 1 ? contiguous(row_bytes) : by_rows(row_bytes, ranks);
    call.destination = {0, 1, 1};
  };
  return one;
}

// In one row in place: this rank's part of the output is its input, or the other way round.
Case all_gather_in_place(Random& random, int32_t ranks, uint64_t length) {
  Case one = all_gather(random, ranks, 1, length);
  one.describe = [=, describe = one.describe](int32_t rank, Call& call) {
    describe(rank, call);
    char* const mine = call.output + static_cast<uint64_t>(rank) * length;
    std::memcpy(mine, call.input, length);
    call.input = mine;
  };
  return one;
}
Case reduce_scatter_in_place(Random& random, int32_t ranks, uint64_t count, const Shape* hosts = nullptr) {
  Case one = reduce_scatter(random, ranks, 1, count, device::Reduction::kSum, hosts);
  const uint64_t length = count * sizeof(device::Bfloat16);
  for (size_t rank = 0; rank < one.inputs.size(); ++rank) {
    const Data part = std::exchange(one.outputs[rank], one.inputs[rank]);
    std::copy(part.begin(), part.end(),
              one.outputs[rank].begin() + static_cast<int64_t>(rank) * static_cast<int64_t>(length));
  }
  one.is_in_place = true;
  one.describe = [=, describe = one.describe](int32_t rank, Call& call) {
    describe(rank, call);
    call.output += static_cast<uint64_t>(rank) * length;
  };
  return one;
}

// Counts in memory. `counts[from][to]` in units; parts lie in reverse order, with a gap between them, where
// there are offsets.
struct Counts {
  std::vector<std::vector<int64_t>> counts;               // [from][to]
  std::vector<std::vector<int64_t>> send, receive;        // [rank]: as the kernel reads them
  std::vector<std::vector<int64_t>> send_at, receive_at;  // [rank]
  std::vector<int64_t> input_units, output_units;         // [rank]
};
void place_parts(const std::vector<int64_t>& counts, bool has_offsets, std::vector<int64_t>& offsets,
                 int64_t& units) {
  offsets.assign(counts.size(), 0);
  units = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const size_t part = has_offsets ? counts.size() - 1 - i : i;
    offsets[part] = units;
    units += counts[part] + (has_offsets ? 1 : 0);
  }
}
std::shared_ptr<Counts> draw_counts(Random& random, size_t size, uint32_t most, bool has_offsets) {
  auto all = std::make_shared<Counts>();
  all->counts.assign(size, std::vector<int64_t>(size));
  for (auto& row : all->counts)
    for (int64_t& count : row) count = random.between(0, 3) == 0 ? 0 : random.between(0, most);
  for (size_t rank = 0; rank < size; ++rank) {
    std::vector<int64_t> from_each;
    for (size_t from = 0; from < size; ++from) from_each.push_back(all->counts[from][rank]);
    all->send.push_back(all->counts[rank]);
    all->receive.push_back(from_each);
    int64_t units = 0;
    place_parts(all->send[rank], has_offsets, all->send_at.emplace_back(), units);
    all->input_units.push_back(units);
    place_parts(all->receive[rank], has_offsets, all->receive_at.emplace_back(), units);
    all->output_units.push_back(units);
  }
  return all;
}
Case all_to_all_v(Random& random, int32_t ranks, uint32_t most, uint64_t unit, bool has_offsets) {
  const auto size = static_cast<size_t>(ranks);
  const auto counts = draw_counts(random, size, most, has_offsets);
  Case one{"all_to_all_v", {}, {}, {}};
  for (size_t rank = 0; rank < size; ++rank)
    one.inputs.push_back(draw(random, static_cast<uint64_t>(counts->input_units[rank]) * unit));
  for (size_t rank = 0; rank < size; ++rank) {
    Data output(static_cast<uint64_t>(counts->output_units[rank]) * unit, kUntouched);
    for (size_t from = 0; from < size; ++from) {
      const auto at = static_cast<uint64_t>(counts->receive_at[rank][from]) * unit;
      const auto source = static_cast<uint64_t>(counts->send_at[from][rank]) * unit;
      for (uint64_t i = 0; i < static_cast<uint64_t>(counts->counts[from][rank]) * unit; ++i)
        output[at + i] = one.inputs[from][source + i];
    }
    one.outputs.push_back(output);
  }
  one.describe = [=](int32_t rank, Call& call) {
    const auto r = static_cast<size_t>(rank);
    call.kind = Kind::kExchange;
    call.lengths = Lengths::kByPair;
    call.counts = counts->send[r].data();
    call.receive_counts = counts->receive[r].data();
    call.offsets = has_offsets ? counts->send_at[r].data() : nullptr;
    call.receive_offsets = has_offsets ? counts->receive_at[r].data() : nullptr;
    call.unit_bytes = unit;
    call.input_bytes = static_cast<uint64_t>(counts->input_units[r]) * unit;
    call.output_bytes = static_cast<uint64_t>(counts->output_units[r]) * unit;
  };
  return one;
}
// By the same counts on all ranks: gathered, or reduced and scattered.
Case all_gather_v(Random& random, int32_t ranks, uint32_t most, uint64_t unit, bool has_offsets) {
  const auto size = static_cast<size_t>(ranks);
  const auto counts = draw_counts(random, size, most, has_offsets);
  Case one{"all_gather_v", {}, {}, {}};
  const std::vector<int64_t>& each = counts->send[0];
  for (size_t rank = 0; rank < size; ++rank)
    one.inputs.push_back(draw(random, static_cast<uint64_t>(each[rank]) * unit));
  Data output(static_cast<uint64_t>(counts->input_units[0]) * unit, kUntouched);
  for (size_t from = 0; from < size; ++from)
    std::copy(one.inputs[from].begin(), one.inputs[from].end(),
              output.begin() + counts->send_at[0][from] * static_cast<int64_t>(unit));
  one.outputs.assign(size, output);
  one.describe = [=](int32_t rank, Call& call) {
    call.kind = Kind::kExchange;
    call.lengths = Lengths::kBySender;
    call.counts = counts->send[0].data();
    call.offsets = has_offsets ? counts->send_at[0].data() : nullptr;
    call.unit_bytes = unit;
    call.input_bytes = static_cast<uint64_t>(counts->send[0][static_cast<size_t>(rank)]) * unit;
    call.output_bytes = static_cast<uint64_t>(counts->input_units[0]) * unit;
  };
  return one;
}
Case reduce_scatter_v(Random& random, int32_t ranks, uint32_t most, bool has_offsets,
                      const Shape* hosts = nullptr) {
  const auto size = static_cast<size_t>(ranks);
  const auto counts = draw_counts(random, size, most, has_offsets);
  Case one{"reduce_scatter_v", {}, {}, {}};
  for (size_t rank = 0; rank < size; ++rank)
    one.inputs.push_back(draw_numbers<float>(random, static_cast<uint64_t>(counts->input_units[0])));
  for (size_t rank = 0; rank < size; ++rank)
    one.outputs.push_back(
        reduce_in_order<float>(hosts, one.inputs, static_cast<uint64_t>(counts->send_at[0][rank]),
                               static_cast<uint64_t>(counts->send[0][rank]), device::Reduction::kSum));
  one.describe = [=](int32_t rank, Call& call) {
    call.kind = Kind::kExchangeReduce;
    call.lengths = Lengths::kByReceiver;
    call.type = static_cast<uint32_t>(device::DataType::kFloat32);
    call.counts = counts->send[0].data();
    call.offsets = has_offsets ? counts->send_at[0].data() : nullptr;
    call.unit_bytes = sizeof(float);
    call.input_bytes = static_cast<uint64_t>(counts->input_units[0]) * sizeof(float);
    call.output_bytes = static_cast<uint64_t>(counts->send[0][static_cast<size_t>(rank)]) * sizeof(float);
  };
  return one;
}

struct Packets {
  template <int kRanks>
  using Way = ops::ByPackets<kRanks>;
  static constexpr ops::Algorithm kOne = ops::Algorithm::kOneShot, kTwo = ops::Algorithm::kTwoShot;
  static constexpr uint64_t kSlotBytes = 128;
};
struct Chunks {
  template <int kRanks>
  using Way = ops::ByChunks<kRanks>;
  static constexpr ops::Algorithm kOne = ops::Algorithm::kBulkOneShot, kTwo = ops::Algorithm::kBulkTwoShot;
  static constexpr uint64_t kSlotBytes = 384;
};

template <typename Ways>
class CallsTest : public testing::Test {
 protected:
  static constexpr uint64_t kSeeds = emulator::kSanitizer ? 1 : 4;
  // Many ranks take long.
  static constexpr uint64_t count_seeds(int32_t ranks) {
    return ranks > 6 ? std::min<uint64_t>(kSeeds, 2) : kSeeds;
  }
  // All-reduces of each algorithm, in place too, of sizes that slots hold once and several times.
  template <int kRanks>
  static void check_all_reduces(int32_t ranks, uint64_t seeds) {
    Ranks<typename Ways::template Way<kRanks>> all({ranks, 2, 32, Ways::kSlotBytes});
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      Random random(seed + 1);
      std::vector<Case> cases;
      for (const auto algorithm : {Ways::kOne, Ways::kTwo}) {
        cases.push_back(
            all_reduce<float>(random, ranks, random.between(0, 300), device::Reduction::kSum, algorithm));
        cases.push_back(all_reduce<device::Bfloat16>(random, ranks, random.between(1, 40),
                                                     device::Reduction::kSum, algorithm, true));
        cases.push_back(all_reduce<device::Half>(random, ranks, 1 + seed * 131 % 700, device::Reduction::kSum,
                                                 algorithm));
      }
      all.expect_outputs(seed, cases, seed % 3 == 2 ? 32 : 0);
    }
  }
  template <int kRanks>
  static void check_exchanges(int32_t ranks) {
    Ranks<typename Ways::template Way<kRanks>> all({ranks, 2, 32, Ways::kSlotBytes});
    for (uint64_t seed = 0; seed < count_seeds(ranks); ++seed) {
      Random random(seed + 77);
      const uint64_t odd = 1 + random.between(0, 200), unit = 1 + random.between(0, 20);
      all.expect_outputs(seed, {all_gather(random, ranks, 1, odd), all_gather(random, ranks, 5, unit),
                                all_gather(random, ranks, 4, 32), all_to_all(random, ranks, odd, 1, 1),
                                all_to_all(random, ranks, 12 * unit, 3, 4),
                                broadcast(random, ranks, 2 * odd, static_cast<int32_t>(seed) % ranks,
                                          seed % 2 == 0 ? Ways::kOne : Ways::kTwo, seed % 4 > 1)});
      all.expect_outputs(seed,
                         {reduce_scatter(random, ranks, 1, odd, device::Reduction::kSum),
                          reduce_scatter(random, ranks, 3, unit, device::Reduction::kMax),
                          reduce_scatter(random, ranks, 4, 24, device::Reduction::kSum)},
                         seed % 2 * 64);
    }
  }
  template <int kRanks>
  static void check_counts_in_memory(int32_t ranks) {
    Ranks<typename Ways::template Way<kRanks>> all({ranks, 2, 32, Ways::kSlotBytes});
    for (uint64_t seed = 0; seed < count_seeds(ranks); ++seed) {
      Random random(seed + 5);
      const bool has_offsets = seed % 2 == 1;
      const uint32_t most = seed % 4 == 3 ? 90 : 9;
      all.expect_outputs(seed, {all_to_all_v(random, ranks, most, 1 + seed % 9, has_offsets),
                                all_gather_v(random, ranks, most, 1 + seed % 7, has_offsets),
                                reduce_scatter_v(random, ranks, most, has_offsets),
                                all_to_all_v(random, ranks, most, 16, !has_offsets)});
    }
  }
};
using AllWays = testing::Types<Packets, Chunks>;
TYPED_TEST_SUITE(CallsTest, AllWays);

TYPED_TEST(CallsTest, AllReduces) {
  this->template check_all_reduces<0>(3, this->kSeeds);
  this->template check_all_reduces<2>(2, this->kSeeds);
  this->template check_all_reduces<4>(4, this->kSeeds);
}

TYPED_TEST(CallsTest, AnyNumberOfRanks) {
  for (const int32_t ranks : list_rank_counts({1, 2, 9})) this->template check_all_reduces<0>(ranks, 1);
}

TYPED_TEST(CallsTest, EveryTypeAndReductionOfRanks) {
  for (const int32_t ranks : list_rank_counts({3})) {
    Ranks<typename TypeParam::template Way<0>> all({ranks, 1, 32, TypeParam::kSlotBytes});
    for (uint64_t seed = 0; seed < (ranks == 3 ? 2 : 1); ++seed) {
      for (uint32_t reduction = 0; reduction < 4; ++reduction) {
        SCOPED_TRACE(reduction);
        const auto as = static_cast<device::Reduction>(reduction);
        for (const auto algorithm : {TypeParam::kOne, TypeParam::kTwo}) {
          Random random(seed * 4 + reduction);
          all.expect_outputs(seed, {all_reduce<float>(random, ranks, 41, as, algorithm),
                                    all_reduce<device::Half>(random, ranks, 41, as, algorithm),
                                    all_reduce<device::Bfloat16>(random, ranks, 41, as, algorithm),
                                    all_reduce<device::E4m3>(random, ranks, 41, as, algorithm),
                                    all_reduce<int32_t>(random, ranks, 41, as, algorithm)});
        }
      }
    }
  }
}

TYPED_TEST(CallsTest, ExchangesOfRanks) {
  for (const int32_t ranks : list_rank_counts({2, 3, 6})) this->template check_exchanges<0>(ranks);
  this->template check_exchanges<2>(2);
  this->template check_exchanges<4>(4);
}

// Two shots: each rank passes on a share. By chunks of all sizes; with 32 bytes each there are many of them.
TYPED_TEST(CallsTest, BroadcastsOfRanks) {
  for (const int32_t ranks : list_rank_counts({1, 2, 3, 4})) {
    Ranks<typename TypeParam::template Way<0>> all({ranks, 2, 32, TypeParam::kSlotBytes});
    for (uint64_t seed = 0; seed < this->count_seeds(ranks); ++seed) {
      Random random(seed + 11);
      const auto root = static_cast<int32_t>(random.between(0, static_cast<uint32_t>(ranks) - 1));
      const uint64_t length = seed == 0 ? 1 : 1 + random.between(0, 3000);
      all.expect_outputs(seed,
                         {broadcast(random, ranks, length, root, TypeParam::kTwo, seed % 2 == 1),
                          broadcast(random, ranks, 16 * length / 10, root, TypeParam::kTwo),
                          all_reduce<device::Bfloat16>(random, ranks, 1 + length / 4, device::Reduction::kSum,
                                                       TypeParam::kTwo)},
                         static_cast<uint32_t>(seed % 3) * 32);
    }
  }
}

// Blocks read and write parts of one tensor side by side: nobody reads a byte that another block writes.
TYPED_TEST(CallsTest, RanksInPlaceBetweenVectors) {
  for (const int32_t ranks : list_rank_counts({2, 3})) {
    Ranks<typename TypeParam::template Way<0>> all({ranks, 3, 32, TypeParam::kSlotBytes});
    for (uint64_t seed = 0; seed < this->count_seeds(ranks); ++seed) {
      Random random(seed + 21);
      const uint64_t odd = 101 + 2 * random.between(0, 100);
      all.expect_outputs(
          seed, {all_gather_in_place(random, ranks, odd), reduce_scatter_in_place(random, ranks, odd),
                 all_gather_in_place(random, ranks, 2 * odd)});
    }
  }
}

// Of chunks of any length: numbers are not split.
TYPED_TEST(CallsTest, ChunksOfAnyLengthOfRanks) {
  for (const int32_t ranks : list_rank_counts({3})) {
    Ranks<typename TypeParam::template Way<0>> all({ranks, 2, 32, TypeParam::kSlotBytes});
    for (const uint32_t chunk_bytes : {1U, 17U, 42U, 95U}) {
      if (ranks > 8 && chunk_bytes < 42) continue;  // takes long
      Random random(chunk_bytes);
      all.expect_outputs(
          chunk_bytes,
          {all_gather(random, ranks, 1, 301), reduce_scatter(random, ranks, 1, 133, device::Reduction::kSum),
           all_reduce<float>(random, ranks, 90, device::Reduction::kSum, TypeParam::kOne),
           all_reduce<float>(random, ranks, 90, device::Reduction::kSum, TypeParam::kTwo),
           broadcast(random, ranks, 400, 1, TypeParam::kTwo), all_to_all_v(random, ranks, 90, 3, true)},
          chunk_bytes);
    }
  }
}

TYPED_TEST(CallsTest, CountsInMemoryOfRanks) {
  for (const int32_t ranks : list_rank_counts({1, 2, 3})) this->template check_counts_in_memory<0>(ranks);
  this->template check_counts_in_memory<2>(2);
}

// Ranks in several hosts: all calls one after the other, in slots that they use in turn. A drawn number of
// ranks in hosts of every size.
std::vector<Shape> list_hosts(uint64_t slot_bytes) {
  std::vector<std::pair<int32_t, int32_t>> hosts = {{2, 1}, {4, 2}, {6, 3}, {3, 1}, {9, 3}};
  for (const int32_t ranks : list_rank_counts())
    for (const int32_t of_host : {1, 2, 3, 4, 8})
      if (of_host < ranks && ranks % of_host == 0 && ranks / of_host <= 8) hosts.emplace_back(ranks, of_host);
  std::vector<Shape> shapes;
  for (const auto& [ranks, of_host] : hosts) {
    shapes.push_back({ranks, 2, 32, slot_bytes, of_host});
    // Two parts again, which clusters of blocks share.
    shapes.push_back({.ranks = ranks,
                      .blocks = 4,
                      .threads = 32,
                      .slot_bytes = slot_bytes,
                      .of_host = of_host,
                      .are_mixed = of_host > 1,
                      .cluster = 2});
  }
  return shapes;
}
constexpr uint64_t kHostSeeds = emulator::kSanitizer ? 1 : 4;

// As they are; and coded without loss, where a slot takes one tile.
struct Plain {
  using Way = ops::AcrossHostsByChunks;
  static constexpr uint64_t kSlotBytes = 640;
};
struct Lossless {
  using Way = ops::AcrossHostsLossless;
  static constexpr uint64_t kSlotBytes = 4096 + 256;
};
template <typename How>
class AcrossHostsTest : public testing::Test {
 protected:
  using Ranks = device_test::Ranks<typename How::Way>;
};
using Hows = testing::Types<Plain, Lossless>;
TYPED_TEST_SUITE(AcrossHostsTest, Hows);

TYPED_TEST(AcrossHostsTest, AllReducesOfRanks) {
  using device::Reduction;
  for (const Shape& shape : list_hosts(TypeParam::kSlotBytes)) {
    typename TestFixture::Ranks all(shape);
    for (uint64_t seed = 0; seed < (shape.ranks > 6 ? 1 : kHostSeeds); ++seed) {
      Random random(seed + 3);
      const uint64_t odd = 1 + seed * 131 % 700;
      const auto of = [&](auto number, uint64_t count, Reduction reduction, bool is_in_place = false) {
        return all_reduce_across<decltype(number)>(random, shape, count, reduction, is_in_place);
      };
      all.expect_outputs(
          seed,
          {of(float{}, random.between(0, 300), Reduction::kSum),
           of(device::Bfloat16{}, random.between(1, 60), Reduction::kSum, true),
           of(device::Bfloat16{}, odd, Reduction::kMean), of(device::Half{}, 1, Reduction::kSum),
           of(device::E4m3{}, odd, Reduction::kSum), of(int32_t{}, odd, Reduction::kMean),
           of(device::Half{}, 40, Reduction::kMin), of(float{}, odd, Reduction::kMax, true)},
          seed % 3 == 2 ? 32 : 0);
    }
  }
}

TYPED_TEST(AcrossHostsTest, ExchangesAndAllReducesInTurnOfRanks) {
  for (const Shape& shape : list_hosts(TypeParam::kSlotBytes)) {
    typename TestFixture::Ranks all(shape);
    const int32_t ranks = shape.ranks;
    for (uint64_t seed = 0; seed < (shape.ranks > 6 ? 1 : kHostSeeds); ++seed) {
      Random random(seed + 77);
      const uint64_t odd = 1 + random.between(0, 900), unit = 1 + random.between(0, 20);
      const auto sum = [&](uint64_t count) {
        return all_reduce_across<device::Bfloat16>(random, shape, count, device::Reduction::kSum);
      };
      all.expect_outputs(
          seed, {all_gather(random, ranks, 1, odd), sum(unit), all_gather(random, ranks, 5, unit),
                 all_to_all(random, ranks, odd, 1, 1), sum(odd), all_to_all(random, ranks, 12 * unit, 3, 4),
                 sum(1), broadcast(random, ranks, 2 * odd, static_cast<int32_t>(seed) % ranks)});
      all.expect_outputs(seed,
                         {reduce_scatter(random, ranks, 1, odd, device::Reduction::kSum, &shape),
                          reduce_scatter(random, ranks, 3, unit, device::Reduction::kMax, &shape), sum(3),
                          reduce_scatter(random, ranks, 4, 24, device::Reduction::kMean, &shape),
                          all_to_all_v(random, ranks, 90, 1 + seed % 9, seed % 2 == 1),
                          all_gather_v(random, ranks, 30, 1 + seed % 7, seed % 2 == 0),
                          reduce_scatter_v(random, ranks, 9, seed % 2 == 1, &shape),
                          all_to_all_v(random, ranks, 9, 16, seed % 2 == 0)},
                         seed % 2 * 64);
    }
  }
}

// Bytes that NICs carry, by the bytes of the tensor: each rank's share goes to each other host, with a flag
// of 8 bytes for each chunk.
TEST(AcrossHosts, NumbersTravelInTheNarrowestType) {
  using device::Reduction;
  for (const Shape& shape :
       {Shape{2, 2, 32, 6400, 1, false}, Shape{3, 2, 32, 6400, 1, false}, Shape{4, 2, 32, 6400, 2, false}}) {
    constexpr uint64_t kBytes = 768;
    const auto hosts = static_cast<uint64_t>(shape.ranks / shape.of_host);
    const uint64_t expected = kBytes * hosts * (hosts - 1);
    const uint64_t flags = 8 * shape.blocks * static_cast<uint64_t>(shape.ranks) * (hosts - 1);
    const auto measure = [&](const Case& one) {
      Ranks<ops::AcrossHostsByChunks> all(shape);
      all.expect_outputs(1, {one});
      return all.hosts().wire_bytes() - flags;
    };
    Random random(5);
    const auto carry = [&](auto number, Reduction reduction) {
      return measure(all_reduce_across<decltype(number)>(random, shape, kBytes / sizeof(number), reduction));
    };
    const uint64_t of_sums = shape.of_host == 1 ? 1 : 2;
    for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
      EXPECT_EQ(carry(device::Bfloat16{}, reduction), expected) << shape.of_host;
      EXPECT_EQ(carry(device::E4m3{}, reduction), expected) << shape.of_host;
    }
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
      EXPECT_EQ(carry(device::Bfloat16{}, reduction), expected * of_sums) << shape.of_host;
      EXPECT_EQ(carry(device::Half{}, reduction), expected * of_sums) << shape.of_host;
      EXPECT_EQ(carry(device::E4m3{}, reduction), expected * of_sums * of_sums) << shape.of_host;
      EXPECT_EQ(carry(float{}, reduction), expected) << shape.of_host;
    }
    const uint64_t count = 96, pairs = static_cast<uint64_t>(shape.ranks) * (hosts - 1);
    EXPECT_EQ(measure(reduce_scatter(random, shape.ranks, 1, count, Reduction::kMax, &shape)),
              count * 2 * pairs)
        << shape.of_host;
    EXPECT_EQ(measure(reduce_scatter(random, shape.ranks, 1, count, Reduction::kSum, &shape)),
              count * 2 * pairs * of_sums)
        << shape.of_host;
  }
}

// A put and a flag for each chunk and counterpart.
TEST(AcrossHosts, AChunkIsTwoRequests) {
  for (const Shape& shape : {Shape{2, 2, 32, 640, 1, false}, Shape{6, 2, 32, 640, 2, false}}) {
    Ranks<ops::AcrossHostsByChunks> all(shape);
    Random random(6);
    constexpr uint64_t kChunks = 3, kChunkBytes = 64;
    const auto hosts = static_cast<uint64_t>(shape.ranks / shape.of_host);
    const uint64_t count = kChunks * kChunkBytes * shape.blocks * static_cast<uint64_t>(shape.of_host) / 4;
    all.expect_outputs(2, {all_reduce_across<float>(random, shape, count, device::Reduction::kSum)},
                       kChunkBytes);
    EXPECT_EQ(all.hosts().requests(),
              2 * kChunks * shape.blocks * static_cast<uint64_t>(shape.ranks) * (hosts - 1));
  }
}

TYPED_TEST(AcrossHostsTest, InPlaceBetweenVectors) {
  for (const Shape& shape :
       {Shape{4, 3, 32, TypeParam::kSlotBytes, 2, false}, Shape{3, 3, 32, TypeParam::kSlotBytes, 1, false}}) {
    typename TestFixture::Ranks all(shape);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Random random(seed + 23);
      const uint64_t odd = 101 + 2 * random.between(0, 100);
      all.expect_outputs(seed, {reduce_scatter_in_place(random, shape.ranks, odd, &shape),
                                all_gather_in_place(random, shape.ranks, odd)});
    }
  }
}

TYPED_TEST(AcrossHostsTest, ChunksOfAnyLength) {
  const Shape shape{4, 2, 32, TypeParam::kSlotBytes, 2, false};
  typename TestFixture::Ranks all(shape);
  for (const uint32_t chunk_bytes : {1U, 17U, 42U, 95U}) {
    Random random(chunk_bytes);
    all.expect_outputs(
        chunk_bytes,
        {all_gather(random, 4, 1, 301), reduce_scatter(random, 4, 1, 133, device::Reduction::kSum, &shape),
         all_reduce_across<float>(random, shape, 90, device::Reduction::kSum),
         all_to_all(random, 4, 301, 1, 1)},
        chunk_bytes);
  }
}

// The same bits as uncoded, and the bytes that NICs carry uncoded, by those that they carry.
double compare_wires(const Shape& shape, const std::vector<Case>& cases, uint64_t runs = 1) {
  Ranks<ops::AcrossHostsByChunks> plain(shape);
  Ranks<ops::AcrossHostsLossless> coded(shape);
  for (uint64_t run = 0; run < runs; ++run) {
    // Cases are what they were made of, or other numbers: NaN, whose sums the plain results do not say.
    (void)plain.run(run, cases);
    (void)coded.run(run, cases);
    EXPECT_TRUE(plain.got() == coded.got()) << cases[0].name << ", run " << run;
    for (int32_t rank = 0; rank < shape.ranks; ++rank) {
      EXPECT_EQ(plain.status(rank), 0);
      EXPECT_EQ(coded.status(rank), 0);
    }
  }
  return static_cast<double>(plain.hosts().wire_bytes()) / static_cast<double>(coded.hosts().wire_bytes());
}
const std::vector<Shape> kLongHosts = {Shape{2, 1, 64, 16384 + 128, 1, false},
                                       Shape{4, 1, 64, 16384 + 128, 2, false}};

// Sums of two ranks have more bits than elements, and are twice as long uncoded.
TEST(AcrossHosts, LosslessNumbersAreShorter) {
  using device::Bfloat16, device::Half, device::Reduction;
  for (const Shape& shape : kLongHosts) {
    const auto divide = [&](Case one, bool is_moved = false) {
      Random random(8);
      if (is_moved)
        for (Data& input : one.inputs) input = draw_numbers<Bfloat16>(random, input.size() / 2);
      return compare_wires(shape, {one});
    };
    Random random(7);
    constexpr uint64_t kCount = 20 * 1024;
    const bool are_sums = shape.of_host != 1;
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
      EXPECT_GT(divide(all_reduce_across<Bfloat16>(random, shape, kCount, reduction)), are_sums ? 1.7 : 1.3);
      EXPECT_GT(divide(reduce_scatter(random, shape.ranks, 1, kCount / 4, reduction, &shape)),
                are_sums ? 1.6 : 1.28);
    }
    EXPECT_GT(divide(all_reduce_across<Bfloat16>(random, shape, kCount, Reduction::kMax)), 1.3);
    // Elements that are not coded.
    const double of_half = divide(all_reduce_across<Half>(random, shape, kCount / 4, Reduction::kSum));
    EXPECT_GE(of_half, are_sums ? 1.4 : 1);
    EXPECT_EQ(divide(all_reduce_across<float>(random, shape, kCount / 4, Reduction::kSum)), 1);
    EXPECT_EQ(divide(all_reduce_across<int32_t>(random, shape, kCount / 4, Reduction::kMin)), 1);
    EXPECT_EQ(divide(all_reduce_across<device::E4m3>(random, shape, kCount / 4, Reduction::kSum)), 1);
    EXPECT_GT(divide(all_gather(random, shape.ranks, 1, kCount), true), 1.3);
    EXPECT_GT(divide(broadcast(random, shape.ranks, 2 * kCount, 1), true), 1.3);
    EXPECT_GT(divide(all_to_all(random, shape.ranks, kCount, 1, 1), true), 1.3);
    // Random bytes, which no codec makes shorter.
    EXPECT_GT(divide(all_gather(random, shape.ranks, 1, kCount)), 0.99);
  }
}

// Messages of every length behind each other in the same slots: random bits (NaN among them), zeros, numbers.
TEST(AcrossHosts, LosslessKeepsEveryBit) {
  using device::Bfloat16, device::Reduction;
  for (Shape shape : kLongHosts) {
    shape.repeats_puts = true;
    Random random(9);
    std::vector<Case> cases;
    for (uint64_t i = 0; i < ops::kMaxCalls; ++i) {
      const uint64_t count = 4096 + 517 * i;
      Case sum =
          all_reduce_across<Bfloat16>(random, shape, count, i % 2 == 0 ? Reduction::kSum : Reduction::kMax);
      Case moved = all_gather(random, shape.ranks, 1, 3 * count + 1);
      Case scattered = reduce_scatter(random, shape.ranks, 1, count / 3, Reduction::kSum, &shape);
      for (Case* const one : {&sum, &moved, &scattered}) {
        for (Data& input : one->inputs) {
          if (i % 3 == 0) input = draw(random, input.size());
          if (i % 3 == 1) std::fill(input.begin(), input.end(), static_cast<unsigned char>(0));
        }
      }
      cases.push_back(i % 4 == 0 ? moved : i % 2 == 0 ? scattered : sum);
    }
    compare_wires(shape, cases, 3);
  }
}

// In windows: every size, in place too, the same bits as by every other way.
TEST(Direct, AllReducesInWindowsOfRanks) {
  for (const int32_t ranks : list_rank_counts({1, 2, 3, 4, 9})) {
    Fleet fleet(ranks);
    for (uint64_t seed = 0; seed < 5; ++seed) {
      Random random(seed);
      const uint64_t count = seed == 0 ? 1 : 1 + random.between(0, 900);
      const bool is_in_place = seed % 2 == 1;
      Case one = all_reduce<device::Bfloat16>(random, ranks, count, device::Reduction::kSum,
                                              ops::Algorithm::kDirect);
      World world(seed);
      for (int32_t rank = 0; rank < ranks; ++rank) {
        char* const input = fleet.data<char>(rank, 1024);
        char* const output = is_in_place ? input : fleet.data<char>(rank, 8192);
        std::memset(output - 16, kUntouched, 4096);
        std::memcpy(input, one.inputs[static_cast<size_t>(rank)].data(), count * 2);
        world.add_grid(static_cast<uint32_t>(rank), 2, 32, [&, rank, input, output] {
          if (rank % 2 == 1) device::pause(500'000);
          const device::ReduceAny reduce{device::DataType::kBfloat16, device::Reduction::kSum};
          const auto call = [&](auto known) {
            return device::all_reduce_in_windows<decltype(known)::value>(
                fleet.context(rank), device::block_index(), 2, input, output, count * 2, reduce);
          };
          using None = std::integral_constant<int, 0>;
          const SymmStatus status = ranks == 2   ? call(std::integral_constant<int, 2>{})
                                    : ranks == 4 ? call(std::integral_constant<int, 4>{})
                                                 : call(None{});
          require(status == SymmStatus::kDone, "all_reduce_in_windows");
        });
      }
      ASSERT_EQ(world.run(), "") << ranks << " " << seed;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const auto* const output = fleet.data<unsigned char>(rank, is_in_place ? 1024 : 8192);
        ASSERT_EQ(std::memcmp(output, one.outputs[static_cast<size_t>(rank)].data(), count * 2), 0)
            << ranks << " " << seed;
        ASSERT_EQ(output[count * 2], kUntouched) << "behind it";
        ASSERT_EQ(output[-1], kUntouched) << "before it";
      }
    }
  }
}

// Ranks that differ in a count, and counts beyond a tensor: said, and nothing is written there.
TYPED_TEST(CallsTest, RefusesCountsThatCannotBe) {
  for (int wrong = 0; wrong < 3; ++wrong) {
    Ranks<typename TypeParam::template Way<0>> all({2, 1, 32, TypeParam::kSlotBytes}, 2'000'000);
    Random random(3);
    Case one = all_to_all_v(random, 2, 9, 4, false);
    for (Data& input : one.inputs) input.resize(4096);
    for (Data& output : one.outputs) output.resize(4096, kUntouched);
    const auto right = one.describe;
    static const int64_t kNegative[2] = {-1, 2}, kHuge[2] = {int64_t{1} << 60, 1}, kOther[2] = {3, 200};
    one.describe = [&](int32_t rank, Call& call) {
      right(rank, call);
      call.input_bytes = call.output_bytes = 4096;
      if (rank == 0) call.counts = wrong == 0 ? kNegative : wrong == 1 ? kHuge : kOther;
    };
    EXPECT_NE(all.run(1, {one}), "");
    const auto invalid = static_cast<int64_t>(SymmStatus::kInvalid);
    EXPECT_EQ(all.status(wrong == 2 ? 1 : 0), invalid) << wrong;
  }
}

// A part that begins inside of the tensor and ends beyond it, of what is sent or of what is received.
TYPED_TEST(CallsTest, RefusesPartsThatEndBeyondTheTensor) {
  for (const bool is_sent : {true, false}) {
    Ranks<typename TypeParam::template Way<0>> all({2, 1, 32, TypeParam::kSlotBytes}, 2'000'000);
    Random random(4);
    Case one = all_to_all_v(random, 2, 9, 4, true);
    static const int64_t kCounts[2] = {5, 5}, kWithin[2] = {0, 10}, kBeyond[2] = {0, 11};
    for (Data& input : one.inputs) input.resize(60);
    for (Data& output : one.outputs) output.resize(60, kUntouched);
    one.describe = [&, right = one.describe](int32_t rank, Call& call) {
      right(rank, call);
      call.input_bytes = call.output_bytes = 60;
      call.counts = call.receive_counts = kCounts;
      call.offsets = rank == 0 && is_sent ? kBeyond : kWithin;
      call.receive_offsets = rank == 0 && !is_sent ? kBeyond : kWithin;
    };
    EXPECT_NE(all.run(1, {one}), "");
    EXPECT_EQ(all.status(0), static_cast<int64_t>(SymmStatus::kInvalid)) << is_sent;
  }
}

}  // namespace
}  // namespace verbena::device_test
