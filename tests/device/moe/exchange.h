// Ranks of a mixture-of-experts exchange on emulated GPUs, and what has to come of their calls: an oracle
// that knows nothing of places, packets and blocks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/collectives/hosts.h"
#include "device/emulator/world.h"
#include "device/support/random.h"
#include "device/symm/fleet.h"
#include "verbena/device/moe/combine.cuh"
#include "verbena/device/moe/dispatch.cuh"

namespace verbena::device_test {

using device::MoeCombine;
using device::MoeDispatch;
using device::MoeGrouping;
using device::MoeHandleLayout;
using device::MoeOrder;
using device::MoeShape;

enum class MoeCast { kNone, kBlocks, kPowers, kExponents };

struct MoeSetup {
  uint32_t ranks, experts, max_tokens, top_k;
  uint32_t blocks = 2, threads = 64;
  uint32_t row_bytes = 64, scale_bytes = 0;
  bool has_exact = true;  // room for an exact combine
  MoeCast cast = MoeCast::kNone;
  bool has_phases = false;  // each call is two kernels
  MoeGrouping grouping = MoeGrouping::kRank;
  uint32_t alignment = 1;
  bool has_columns = false;    // of scales, which a cast makes
  bool has_ids_first = false;  // grouped rows come in a kernel after the one that receives their ids
  uint32_t hosts = 1;          // of equally many ranks
  bool are_mixed = false;      // rank r is on host r modulo hosts
  uint32_t chunk_bits = 2;     // 2^chunk_bits tokens in a chunk between hosts
  bool in_windows = false;     // rows of one phase by rank, which lie in windows

  uint32_t host_of(uint32_t rank) const { return are_mixed ? rank % hosts : rank / (ranks / hosts); }

  // A dispatched row and its scales, which a cast changes.
  uint32_t sent_bytes() const { return cast == MoeCast::kNone ? row_bytes : row_bytes / 2; }
  uint32_t sent_scale_bytes() const {
    return cast == MoeCast::kNone ? scale_bytes : (sent_bytes() + 127) / 128 * 4;
  }
  uint32_t stored_scale_bytes() const {
    return cast == MoeCast::kExponents ? (sent_scale_bytes() + 15) / 16 * 4 : sent_scale_bytes();
  }
  bool is_grouped() const { return grouping != MoeGrouping::kRank; }
  uint32_t output_rows() const {
    const uint32_t local = experts / ranks, rows = ranks * max_tokens;
    switch (grouping) {
      case MoeGrouping::kRank:
        return rows;
      case MoeGrouping::kExpert:
        return local * rows;
      case MoeGrouping::kRagged:
        break;
    }
    return rows * std::min(top_k, local) + local * (alignment - 1) + 3;
  }
  // Of columns of scales.
  uint32_t column_rows() const {
    return grouping == MoeGrouping::kRank     ? max_tokens
           : grouping == MoeGrouping::kExpert ? ranks * max_tokens
                                              : output_rows();
  }
};

// Memory that begins at a multiple of 16 bytes and is filled with one byte value. A copy owns its memory.
class MoeBytes {
 public:
  explicit MoeBytes(size_t length = 0, int fill = 0x5a) : words_(length / 16 + 1), length_(length) {
    std::memset(data(), fill, words_.size() * 16);
  }
  MoeBytes(char* window, size_t length) : window_(window), length_(length) {
    std::memset(window, 0x5a, length);
  }
  MoeBytes(const MoeBytes& other) : MoeBytes(other.length_) {
    std::memcpy(data(), other.data(), other.length_);
  }
  MoeBytes& operator=(const MoeBytes& other) { return *this = MoeBytes(other); }
  MoeBytes(MoeBytes&&) = default;
  MoeBytes& operator=(MoeBytes&&) = default;
  ~MoeBytes() = default;

  char* data() { return window_ != nullptr ? window_ : reinterpret_cast<char*>(words_.data()); }
  const char* data() const {
    return window_ != nullptr ? window_ : reinterpret_cast<const char*>(words_.data());
  }
  size_t size() const { return length_; }
  template <typename T>
  T get(size_t index) const {
    T value;
    std::memcpy(&value, data() + index * sizeof(T), sizeof(T));
    return value;
  }
  template <typename T>
  void set(size_t index, T value) {
    std::memcpy(data() + index * sizeof(T), &value, sizeof(T));
  }

 private:
  struct alignas(16) Word {
    uint64_t low, high;
  };
  std::vector<Word> words_;
  char* window_ = nullptr;  // memory in a heap, in place of words_
  size_t length_;
};

// A dispatch and its combine, of all ranks.
template <typename T>
class MoePair {
 public:
  // Allocates memory of a rank in a window. Returns null if the exchange does not use windows.
  using Allocate = std::function<char*(uint32_t rank, size_t length)>;

  MoePair(const MoeSetup& setup, const MoeShape& shape, uint64_t seed, MoeOrder order, bool has_weights,
          bool has_long_ids, const Allocate& allocate)
      : setup_(setup), shape_(shape), order_(order), has_weights_(has_weights), has_long_ids_(has_long_ids) {
    Random random(seed + 77);
    for (uint32_t rank = 0; rank < setup.ranks; ++rank) {
      of_.push_back(draw(random, rank, allocate));
      if (!shape.is_living(rank)) of_[rank].tokens = 0;
    }
  }

  MoeDispatch dispatch(uint32_t rank) {
    Rank& mine = of_[rank];
    MoeDispatch call{};
    call.rows = mine.rows.data();
    call.row_stride = setup_.row_bytes + 16;
    call.row_bytes = setup_.sent_bytes();
    call.scale_bytes = setup_.sent_scale_bytes();
    call.scale_format = setup_.cast == MoeCast::kExponents ? device::MoeScales::kExponents
                        : setup_.cast == MoeCast::kPowers  ? device::MoeScales::kPowers
                                                           : device::MoeScales::kFloats;
    call.output_scale_bytes = setup_.stored_scale_bytes();
    call.column_rows = setup_.has_columns ? setup_.column_rows() : 0;
    call.grouping = setup_.grouping;
    call.output_rows = setup_.output_rows();
    call.alignment = setup_.alignment;
    call.row_sources = reinterpret_cast<int32_t*>(mine.row_sources.data());
    call.row_experts = rank % 2 == 0 ? reinterpret_cast<int32_t*>(mine.row_experts.data()) : nullptr;
    call.phases = device::kMoeSend | device::kMoeReceive;
    call.scales = mine.scales.data() + 1;
    call.scale_stride = setup_.scale_bytes + 3;
    call.ids = mine.ids.data();
    call.id_stride = shape_.top_k + 1;
    call.weights = has_weights_ ? reinterpret_cast<const float*>(mine.weights.data()) : nullptr;
    call.tokens = mine.tokens;
    call.has_long_ids = has_long_ids_ ? 1 : 0;
    call.output = mine.output.data();
    call.output_scales = mine.output_scales.data();
    call.handle = mine.handle.data();
    call.parts = parts(rank);
    call.layout = MoeHandleLayout::of(shape_);
    return call;
  }
  MoeCombine combine(uint32_t rank) {
    Rank& mine = of_[rank];
    return {mine.expert_rows.data(),
            setup_.row_bytes,
            mine.tokens,
            mine.combined.data(),
            mine.handle.data(),
            device::kMoeSend | device::kMoeReceive,
            parts(rank + 1),
            MoeHandleLayout::of(shape_),
            setup_.grouping,
            has_combine_weights() ? reinterpret_cast<const float*>(mine.combine_weights.data()) : nullptr};
  }
  // Other ones on each rank.
  static device::MoeParts parts(uint32_t rank) { return {rank % 3, (rank + rank / 3 + 1) % 4}; }
  std::string check_dispatch() const {
    for (uint32_t rank = 0; rank < setup_.ranks; ++rank) {
      if (!shape_.is_living(rank)) continue;
      const Groups groups = find_groups(rank);
      for (uint32_t source = 0; source < setup_.ranks; ++source)
        if (const std::string wrong = check_received(rank, source, groups); !wrong.empty())
          return "rank " + std::to_string(rank) + " from " + std::to_string(source) + ": " + wrong;
      std::string wrong = check_groups(rank, groups);
      if (wrong.empty()) wrong = check_own_routing(rank);
      if (!wrong.empty()) return "rank " + std::to_string(rank) + ": " + wrong;
    }
    return "";
  }
  std::string check_combine() const {
    for (uint32_t rank = 0; rank < setup_.ranks; ++rank) {
      if (!shape_.is_living(rank)) continue;
      const Rank& mine = of_[rank];
      for (uint32_t token = 0; token < shape_.max_tokens; ++token) {
        for (uint32_t i = 0; i < setup_.row_bytes / 2; ++i) {
          const size_t at = size_t{token} * setup_.row_bytes / 2 + i;
          const auto got = mine.combined.template get<uint16_t>(at);
          const uint16_t want = token < mine.tokens ? add_up(rank, token, i) : uint16_t{0x5a5a};
          if (got != want)
            return "rank " + std::to_string(rank) + " token " + std::to_string(token) + " element " +
                   std::to_string(i) + ": " + std::to_string(got) + " and not " + std::to_string(want);
        }
      }
    }
    return "";
  }
  // What kernels before and after the calls do with memory in windows. Rows that come after the end of a
  // dispatch are not seen, and rows that a combine loads before its beginning or after its end are wrong.
  void hide_expert_rows(uint32_t rank) {
    of_[rank].kept = MoeBytes(of_[rank].expert_rows);
    std::memset(of_[rank].expert_rows.data(), 0x33, of_[rank].expert_rows.size());
  }
  void write_expert_rows(uint32_t rank) { copy(of_[rank].expert_rows, of_[rank].kept.data()); }
  void spoil_expert_rows(uint32_t rank) { copy(of_[rank].expert_rows, nullptr); }
  void see_received(uint32_t rank) {
    for (auto& [seen, memory] : list_received(of_[rank])) copy(*seen, memory->data());
  }
  // Puts back on the host what the kernels have seen, and the experts' rows.
  void restore(uint32_t rank, bool has_received) {
    std::memcpy(of_[rank].expert_rows.data(), of_[rank].kept.data(), of_[rank].kept.size());
    for (auto& [seen, memory] : list_received(of_[rank]))
      if (has_received) std::memcpy(memory->data(), seen->data(), seen->size());
  }
  // Replace what draw() has chosen.
  void set_tokens(uint32_t rank, uint32_t tokens) { of_[rank].tokens = tokens; }
  void set_id(uint32_t rank, uint32_t token, uint32_t k, int64_t id) {
    Rank& mine = of_[rank];
    mine.experts[token][k] = id;
    const size_t at = size_t{token} * (shape_.top_k + 1) + k;
    if (has_long_ids_) {
      mine.ids.template set<int64_t>(at, id);
    } else {
      mine.ids.template set<int32_t>(at, static_cast<int32_t>(id));
    }
  }
  // Counts each row once for each other host to which it goes.
  uint64_t count_rows_between_hosts() const {
    uint64_t rows = 0;
    for (uint32_t source = 0; source < setup_.ranks; ++source) {
      for (uint32_t token = 0; token < of_[source].tokens; ++token) {
        uint32_t hosts = 0;
        for (uint32_t rank = 0; rank < setup_.ranks; ++rank)
          if (goes_to(source, token, rank)) hosts |= 1U << setup_.host_of(rank);
        rows += static_cast<uint32_t>(__builtin_popcount(hosts & ~(1U << setup_.host_of(source))));
      }
    }
    return rows;
  }
  MoeOrder order() const { return order_; }
  const MoeBytes& handle(uint32_t rank) const { return of_[rank].handle; }
  const MoeBytes& output(uint32_t rank) const { return of_[rank].output; }
  const MoeBytes& combined(uint32_t rank) const { return of_[rank].combined; }
  uint32_t tokens(uint32_t rank) const { return of_[rank].tokens; }

 private:
  struct Rank {
    uint32_t tokens;
    std::vector<std::vector<int64_t>> experts;  // [token][k], as they are given
    MoeBytes rows, scales, ids, weights, output, output_scales, handle, expert_rows, combined;
    MoeBytes row_sources, row_experts, combine_weights;
    MoeBytes kept, seen_output, seen_scales, seen_handle;
  };
  static std::vector<std::pair<MoeBytes*, MoeBytes*>> list_received(Rank& mine) {
    return {{&mine.seen_output, &mine.output},
            {&mine.seen_scales, &mine.output_scales},
            {&mine.seen_handle, &mine.handle}};
  }
  // By all threads of the grid. Without `from`, fills the bytes.
  static void copy(MoeBytes& to, const char* from) {
    const uint32_t threads = device::threads_per_block() * device::blocks_per_grid();
    for (size_t i = device::block_index() * device::threads_per_block() + device::thread_index();
         i < to.size() / 4; i += threads)
      device::store_moe<uint32_t>(to.data(), i,
                                  from == nullptr ? 0x33333333 : device::load_moe<uint32_t>(from, i));
  }
  // What the places of a rank have to be.
  struct Groups {
    std::vector<int32_t> places;   // [ranks][max_tokens][top_k]
    std::vector<int32_t> sources;  // of each row of the output, as row_sources
    std::vector<int32_t> experts;
    std::vector<uint32_t> counts, begins;  // of each local expert
  };

  static void fill(Random& random, MoeBytes& bytes) {
    for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
      const uint32_t bits = random.between(0, UINT32_MAX);
      // Elements of one magnitude, of which sums round, and now and then any bits.
      const auto value = bits % 16 == 0
                             ? static_cast<uint16_t>(bits >> 16)
                             : device::narrow<T>(static_cast<float>(bits % 4099) / 7.0F - 200.0F).bits;
      bytes.set<uint16_t>(i / 2, value);
    }
    // What a packet does not carry.
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8)
      if (random.between(0, 7) == 0)
        bytes.set<uint64_t>(i / 8, device::Packet::kSentinel ^ random.between(0, 1));
  }
  int64_t draw_id(Random& random) const {
    switch (random.between(0, 15)) {
      case 0:
        return -1;
      case 1:
        return int64_t{shape_.experts} + random.between(0, 3);
      case 2:
        return has_long_ids_ ? int64_t{1} << 32 : INT32_MIN;
      default:
        return random.between(0, shape_.experts - 1);
    }
  }
  Rank draw(Random& random, uint32_t rank, const Allocate& allocate_window) {
    const auto allocate = [&](size_t length) {
      char* const window = allocate_window(rank, length);
      return window != nullptr ? MoeBytes(window, length) : MoeBytes(length);
    };
    Rank mine;
    const uint32_t max_tokens = shape_.max_tokens, top_k = shape_.top_k;
    const uint32_t kinds = random.between(0, 5);
    mine.tokens = kinds == 0 ? 0 : kinds == 1 ? max_tokens : random.between(0, max_tokens);
    const bool goes_to_one = random.between(0, 5) == 0;
    mine.rows = MoeBytes(size_t{max_tokens} * (setup_.row_bytes + 16));
    fill(random, mine.rows);
    std::memset(mine.rows.data(), 0, setup_.row_bytes);  // no largest magnitude
    mine.scales = MoeBytes(size_t{max_tokens} * (setup_.scale_bytes + 3) + 1);
    fill(random, mine.scales);
    mine.ids = MoeBytes(size_t{max_tokens} * (top_k + 1) * 8);
    mine.weights = MoeBytes(size_t{max_tokens} * top_k * 4);
    mine.combine_weights = MoeBytes(size_t{max_tokens} * top_k * 4);
    for (uint32_t token = 0; token < max_tokens; ++token) {
      std::vector<int64_t> experts;
      for (uint32_t k = 0; k < top_k; ++k) {
        int64_t id = goes_to_one ? rank % shape_.experts : draw_id(random);
        if (k > 0 && random.between(0, 9) == 0) id = experts[0];  // twice the same
        experts.push_back(id);
        const size_t at = size_t{token} * (top_k + 1) + k;
        if (has_long_ids_) {
          mine.ids.template set<int64_t>(at, id);
        } else {
          mine.ids.template set<int32_t>(at, static_cast<int32_t>(id));
        }
        for (MoeBytes* const weights : {&mine.weights, &mine.combine_weights})
          weights->template set<float>(size_t{token} * top_k + k,
                                       static_cast<float>(random.between(1, 999)) / 777.0F);
      }
      mine.experts.push_back(experts);
    }
    const size_t rows = size_t{setup_.ranks} * max_tokens;
    const size_t output_rows = setup_.output_rows();
    mine.output = allocate(output_rows * setup_.sent_bytes());
    mine.output_scales = allocate(output_rows * setup_.stored_scale_bytes());
    mine.row_sources = MoeBytes(output_rows * 4);
    mine.row_experts = MoeBytes(output_rows * 4);
    mine.handle = allocate(MoeHandleLayout::of(shape_).bytes);
    mine.expert_rows = allocate((order_ == MoeOrder::kRows ? rows
                                 : setup_.is_grouped()     ? output_rows
                                                           : rows * top_k) *
                                setup_.row_bytes);
    fill(random, mine.expert_rows);
    mine.combined = MoeBytes(size_t{max_tokens} * setup_.row_bytes);
    for (auto& [seen, memory] : list_received(mine)) *seen = MoeBytes(memory->size());
    return mine;
  }

  bool is_at(int64_t id, uint32_t rank) const {
    return id >= 0 && id < int64_t{shape_.experts} && id / shape_.local_experts == rank &&
           shape_.is_living(rank);
  }
  bool goes_to(uint32_t source, uint32_t token, uint32_t rank) const {
    for (const int64_t id : of_[source].experts[token])
      if (is_at(id, rank)) return true;
    return false;
  }
  // A combine may bring weights of its own.
  bool has_combine_weights() const { return order_ == MoeOrder::kExact && has_long_ids_; }
  float weight(uint32_t source, uint32_t token, uint32_t k) const {
    return has_weights_ ? of_[source].weights.template get<float>(size_t{token} * shape_.top_k + k) : 1.0F;
  }
  static bool is_nan_at(const std::vector<char>& floats, size_t at) {
    float value = 0;
    std::memcpy(&value, &floats[at / 4 * 4], sizeof(value));
    return std::isnan(value);
  }
  // What comes of a token: its row and scales.
  std::pair<std::vector<char>, std::vector<char>> make_sent(const Rank& theirs, uint32_t token) const {
    const char* const row = theirs.rows.data() + token * (setup_.row_bytes + 16);
    const char* const scales = theirs.scales.data() + 1 + token * (setup_.scale_bytes + 3);
    if (setup_.cast == MoeCast::kNone)
      return {{row, row + setup_.row_bytes}, {scales, scales + setup_.scale_bytes}};
    const uint32_t count = setup_.sent_bytes();
    std::vector<char> bytes(count), floats(setup_.sent_scale_bytes());
    for (uint32_t first = 0; first < count; first += 128) {
      const uint32_t end = std::min(count, first + 128);
      float values[128], largest = 1e-4F;
      bool is_nan = false;
      for (uint32_t i = first; i < end; ++i) {
        T number;
        std::memcpy(&number, row + i * 2, 2);
        values[i - first] = device::widen(number);
        is_nan = is_nan || std::isnan(values[i - first]);
        largest = std::max(largest, std::fabs(values[i - first]));
      }
      float scale = largest / 448, inverse = 1 / scale;
      if (setup_.cast != MoeCast::kBlocks) {
        int exponent = 0;
        const float fraction = std::frexp(scale, &exponent);  // 0.5 to below 1
        scale = std::ldexp(1.0F, fraction == 0.5F ? exponent - 1 : exponent);
        inverse = 1 / scale;
        is_nan = is_nan || std::isinf(largest);
      }
      for (uint32_t i = first; i < end; ++i) {
        const float scaled = is_nan ? std::nanf("") : values[i - first] * inverse;
        bytes[i] = static_cast<char>(device::narrow<device::E4m3>(scaled).bits);
      }
      const uint32_t nan = 0x7fffffff;
      std::memcpy(&floats[first / 128 * 4], is_nan ? static_cast<const void*>(&nan) : &scale, 4);
    }
    return {bytes, floats};
  }
  // Counted row by row: an expert that is twice in the ids of a token has one row for both.
  Groups find_groups(uint32_t rank) const {
    Groups groups;
    const uint32_t top_k = shape_.top_k, local = shape_.local_experts;
    groups.places.assign(size_t{setup_.ranks} * shape_.max_tokens * top_k, -1);
    groups.sources.assign(setup_.output_rows(), -1);
    groups.experts.assign(setup_.output_rows(), -1);
    groups.counts.assign(local, 0);
    uint32_t begin = 0;
    for (uint32_t expert = 0; expert < local; ++expert) {
      groups.begins.push_back(begin);
      for (uint32_t source = 0; source < setup_.ranks; ++source) {
        uint32_t number = 0;
        for (uint32_t token = 0; token < of_[source].tokens; ++token) {
          if (!goes_to(source, token, rank)) continue;
          const uint32_t row = source * shape_.max_tokens + number++;
          bool is_there = false;
          for (uint32_t k = 0; k < top_k; ++k) {
            if (of_[source].experts[token][k] != int64_t{rank} * local + expert) continue;
            const uint32_t place = begin + groups.counts[expert];
            groups.places[size_t{row} * top_k + k] = static_cast<int32_t>(place);
            groups.sources[place] = static_cast<int32_t>(row);
            groups.experts[place] = static_cast<int32_t>(expert);
            is_there = true;
          }
          if (is_there) ++groups.counts[expert];
        }
      }
      begin += setup_.grouping == MoeGrouping::kExpert
                   ? setup_.ranks * shape_.max_tokens
                   : (groups.counts[expert] + setup_.alignment - 1) / setup_.alignment * setup_.alignment;
      if (setup_.grouping == MoeGrouping::kRank) break;
    }
    return groups;
  }
  std::string check_groups(uint32_t rank, const Groups& groups) const {
    if (!setup_.is_grouped()) return "";
    const Rank& mine = of_[rank];
    const MoeHandleLayout layout = MoeHandleLayout::of(shape_);
    const auto word = [&](uint64_t offset, uint64_t index) {
      return mine.handle.template get<int32_t>(offset / 4 + index);
    };
    for (uint32_t expert = 0; expert < shape_.local_experts; ++expert) {
      if (word(layout.expert_counts, expert) != static_cast<int32_t>(groups.counts[expert]))
        return "another count of expert " + std::to_string(expert);
      if (word(layout.expert_begins, expert) != static_cast<int32_t>(groups.begins[expert]))
        return "another begin of expert " + std::to_string(expert);
    }
    for (size_t i = 0; i < groups.places.size(); ++i)
      if (word(layout.places, i) != groups.places[i]) return "another place " + std::to_string(i);
    for (uint32_t row = 0; row < setup_.output_rows(); ++row) {
      if (mine.row_sources.template get<int32_t>(row) != groups.sources[row])
        return "another source of row " + std::to_string(row);
      if (rank % 2 == 0 && mine.row_experts.template get<int32_t>(row) != groups.experts[row])
        return "another expert of row " + std::to_string(row);
      for (uint64_t i = 0; i < setup_.sent_bytes() && groups.sources[row] < 0; ++i)
        if (mine.output.data()[row * uint64_t{setup_.sent_bytes()} + i] != 0x5a)
          return "a byte in row " + std::to_string(row) + ", which has no token";
    }
    return "";
  }
  // The routing of a rank's tokens, for another dispatch: ids that name a living rank's expert.
  std::string check_own_routing(uint32_t rank) const {
    const Rank& mine = of_[rank];
    const MoeHandleLayout layout = MoeHandleLayout::of(shape_);
    for (uint32_t token = 0; token < mine.tokens; ++token) {
      for (uint32_t k = 0; k < shape_.top_k; ++k) {
        const int64_t id = mine.experts[token][k];
        bool is_named = false;
        for (uint32_t other = 0; other < setup_.ranks; ++other) is_named = is_named || is_at(id, other);
        const uint64_t at = uint64_t{token} * shape_.top_k + k;
        if (mine.handle.template get<int32_t>(layout.own_ids / 4 + at) !=
            (is_named ? static_cast<int32_t>(id) : -1))
          return "another own id of token " + std::to_string(token);
        if (mine.handle.template get<float>(layout.own_weights / 4 + at) !=
            (is_named ? weight(rank, token, k) : 0.0F))
          return "another own weight of token " + std::to_string(token);
      }
    }
    return "";
  }
  // Returns the byte `at` of a row's scales as they are stored.
  char find_scale_byte(const Rank& mine, uint64_t row, size_t at) const {
    const size_t bytes = setup_.stored_scale_bytes(), rows = setup_.column_rows();
    if (!setup_.has_columns) return mine.output_scales.data()[row * bytes + at];
    const size_t group = row / rows;
    return mine.output_scales.data()[((group * bytes / 4 + at / 4) * rows + row % rows) * 4 + at % 4];
  }
  std::string check_row(const Rank& mine, uint64_t row, const std::vector<char>& bytes,
                        const std::vector<char>& scales) const {
    if (std::memcmp(mine.output.data() + row * bytes.size(), bytes.data(), bytes.size()) != 0)
      return "other bytes in row " + std::to_string(row);
    std::vector<char> got(setup_.stored_scale_bytes());
    for (size_t at = 0; at < got.size(); ++at) got[at] = find_scale_byte(mine, row, at);
    if (setup_.cast == MoeCast::kExponents) {
      for (size_t at = 0; at < got.size(); ++at) {
        uint32_t bits = 0;
        if (at < scales.size() / 4) std::memcpy(&bits, &scales[at * 4], 4);
        if (static_cast<uint8_t>(got[at]) != (bits >> 23 & 0xff))
          return "other exponents in row " + std::to_string(row);
      }
      return "";
    }
    for (size_t at = 0; at < scales.size(); ++at) {
      // A NaN has bits of its own.
      const bool is_nan = setup_.cast != MoeCast::kNone && is_nan_at(got, at);
      if (is_nan ? !is_nan_at(scales, at) : got[at] != scales[at])
        return "other scales in row " + std::to_string(row);
    }
    return "";
  }
  std::string check_received(uint32_t rank, uint32_t source, const Groups& groups) const {
    const Rank &mine = of_[rank], &theirs = of_[source];
    const MoeHandleLayout layout = MoeHandleLayout::of(shape_);
    const auto word = [&](uint64_t offset, uint64_t index) {
      return mine.handle.template get<int32_t>(offset / 4 + index);
    };
    uint32_t number = 0;
    for (uint32_t token = 0; token < theirs.tokens; ++token) {
      if (!goes_to(source, token, rank)) continue;
      const uint64_t row = uint64_t{source} * shape_.max_tokens + number++;
      if (word(layout.sources, row) != static_cast<int32_t>(token)) return "another token";
      const auto [bytes, scales] = make_sent(theirs, token);
      for (uint32_t k = 0; k < (setup_.is_grouped() ? shape_.top_k : 1); ++k) {
        const int32_t place = groups.places[row * shape_.top_k + k];
        if (setup_.is_grouped() && place < 0) continue;
        const std::string wrong =
            check_row(mine, setup_.is_grouped() ? static_cast<uint64_t>(place) : row, bytes, scales);
        if (!wrong.empty()) return wrong;
      }
      for (uint32_t k = 0; k < shape_.top_k; ++k) {
        const int64_t id = theirs.experts[token][k];
        const bool is_here = is_at(id, rank);
        if (word(layout.ids, row * shape_.top_k + k) !=
            (is_here ? static_cast<int32_t>(id % shape_.local_experts) : -1))
          return "another id in row " + std::to_string(row);
        if (mine.handle.template get<float>(layout.weights / 4 + row * shape_.top_k + k) !=
            (is_here ? weight(source, token, k) : 0.0F))
          return "another weight in row " + std::to_string(row);
      }
    }
    if (word(layout.counts, source) != static_cast<int32_t>(number)) return "another count";
    for (; number < shape_.max_tokens; ++number) {
      const uint64_t row = uint64_t{source} * shape_.max_tokens + number;
      if (word(layout.sources, row) != -1) return "a token behind the count";
      for (uint32_t k = 0; k < shape_.top_k; ++k)
        if (word(layout.ids, row * shape_.top_k + k) != -1) return "an id behind the count";
      for (uint64_t i = row * setup_.sent_bytes();
           i < (row + 1) * setup_.sent_bytes() && !setup_.is_grouped(); ++i)
        if (mine.output.data()[i] != 0x5a) return "a byte behind the count";
    }
    return "";
  }

  uint32_t find_row(uint32_t source, uint32_t token, uint32_t rank) const {
    uint32_t number = 0;
    for (uint32_t i = 0; i < token; ++i) number += goes_to(source, i, rank) ? 1 : 0;
    return source * shape_.max_tokens + number;
  }
  // Returns the row of one of a token's experts among those that a rank combines.
  uint64_t find_expert_row(uint32_t rank, uint64_t row, uint32_t k) const {
    const uint64_t index = row * shape_.top_k + k;
    const uint64_t places = MoeHandleLayout::of(shape_).places / 4;
    return setup_.is_grouped() ? static_cast<uint64_t>(of_[rank].handle.template get<int32_t>(places + index))
                               : index;
  }
  float expert_value(uint32_t rank, uint64_t row, uint32_t element) const {
    return device::widen(
        T{of_[rank].expert_rows.template get<uint16_t>(row * setup_.row_bytes / 2 + element)});
  }
  uint16_t add_up(uint32_t source, uint32_t token, uint32_t element) const {
    const std::vector<int64_t>& ids = of_[source].experts[token];
    float sum = 0;
    bool is_first = true;
    const auto add = [](float& to, bool& is_first_of, float addend) {
      to = is_first_of ? addend : to + addend;
      is_first_of = false;
    };
    // The rows of the own host, then a rounded sum of each other host.
    const uint32_t own = setup_.host_of(source);
    for (uint32_t i = 0; i < setup_.hosts && order_ != MoeOrder::kExact; ++i) {
      const uint32_t host = i == 0 ? own : i <= own ? i - 1 : i;
      float host_sum = 0;
      bool is_first_of_host = true;
      for (uint32_t rank = 0; rank < setup_.ranks; ++rank) {
        if (setup_.host_of(rank) != host || !goes_to(source, token, rank)) continue;
        const uint64_t row = find_row(source, token, rank);
        float partial = 0;
        if (order_ == MoeOrder::kRows) {
          partial = expert_value(rank, row, element);
        } else {
          for (uint32_t k = 0; k < shape_.top_k; ++k)
            if (is_at(ids[k], rank))
              partial = __builtin_fmaf(weight(source, token, k),
                                       expert_value(rank, find_expert_row(rank, row, k), element), partial);
          partial = device::widen(device::narrow<T>(partial));
        }
        add(host_sum, is_first_of_host, partial);
      }
      if (is_first_of_host) continue;
      add(sum, is_first, host == own ? host_sum : device::widen(device::narrow<T>(host_sum)));
    }
    for (uint32_t k = 0; k < shape_.top_k && order_ == MoeOrder::kExact; ++k) {
      for (uint32_t rank = 0; rank < setup_.ranks; ++rank) {
        if (!is_at(ids[k], rank)) continue;
        const uint64_t row = find_expert_row(rank, find_row(source, token, rank), k);
        const float factor =
            has_combine_weights()
                ? of_[source].combine_weights.template get<float>(size_t{token} * shape_.top_k + k)
                : weight(source, token, k);
        sum = __builtin_fmaf(factor, expert_value(rank, row, element), sum);
      }
    }
    return device::narrow<T>(sum).bits;
  }

  MoeSetup setup_;
  MoeShape shape_;
  MoeOrder order_;
  bool has_weights_, has_long_ids_;
  std::vector<Rank> of_;
};

// The ranks, with a workspace that goes on from run to run.
template <typename T>
class MoeRanks {
 public:
  static constexpr uint64_t kNever_ns = uint64_t{1} << 60;
  static constexpr uint32_t kBoth = device::kMoeSend | device::kMoeReceive;
  // Many threads poll for long while the others have not begun, and time runs the faster the longer they do.
  static constexpr emulator::World::Limits kPatient{.stalled_steps = 20'000'000};

  explicit MoeRanks(const MoeSetup& setup)
      : setup_(setup),
        shape_(make_shape(setup)),
        slot_bytes_(find_slot_bytes(shape_)),
        fleet_(static_cast<int32_t>(setup.ranks), INT32_MAX, find_windows() + window_bytes()),
        allocated_(setup.ranks) {
    for (uint32_t rank = 0; rank < setup.ranks; ++rank)
      fleet_.context(static_cast<int32_t>(rank)).timeout_ns = kNever_ns;
    if (setup.hosts == 1) return;
    hosts_.emplace(fleet_, static_cast<int32_t>(setup.ranks / setup.hosts), setup.are_mixed);
    hosts_->repeat_puts();
  }

  const MoeShape& shape() const { return shape_; }
  // The NICs between hosts.
  Hosts& hosts() { return *hosts_; }
  // Ranks that take part in later calls, whose pairs are drawn afterwards.
  void set_living(uint32_t living) { shape_.living = shape_.near = living; }
  // Clears what a host's reset clears.
  void reset() {
    const uint64_t length = find_windows();
    for (uint32_t rank = 0; rank < setup_.ranks; ++rank)
      std::memset(fleet_.data(static_cast<int32_t>(rank), Fleet::kDataBytes), 0, length);
  }
  Fleet& fleet() { return fleet_; }
  SymmWorkspace<> workspace(uint32_t rank) {
    return fleet_.workspace(static_cast<int32_t>(rank), 0, 2 * setup_.blocks, slot_bytes_);
  }
  // All of a rank's heap that an exchange may write.
  std::vector<char> list_heap(uint32_t rank) {
    const char* const begin = fleet_.template data<char>(static_cast<int32_t>(rank));
    return {begin, begin + Fleet::kDataBytes + find_windows() + window_bytes()};
  }
  // What peers have written into a rank's workspace.
  std::vector<char> list_packets(uint32_t rank) {
    const char* const begin = workspace(rank).blocks.slots;
    return {begin, begin + shape_.workspace_bytes()};
  }
  // Looks for entries of groups that none of the calls 1 to `calls` has written.
  std::string find_old_entries(uint64_t calls) {
    for (uint32_t rank = 0; rank < setup_.ranks; ++rank) {
      const std::vector<char> packets = list_packets(rank);
      std::string wrong;
      const auto check = [&](uint64_t packet, uint32_t entries) {
        for (uint32_t i = 0; i < entries; ++i) {
          uint64_t entry = 0;
          std::memcpy(&entry, &packets[packet * 16 + uint64_t{i} * device::kMoeEntryBytes], sizeof(entry));
          bool is_new = false;
          for (uint64_t call = 1; call <= calls; ++call)
            is_new = is_new || device::MoeEntry::is_of_call(entry, call);
          if (!is_new)
            wrong = "packet " + std::to_string(packet) + ", entry " + std::to_string(i) + " of rank " +
                    std::to_string(rank);
        }
      };
      for (const uint64_t call : {0, 1}) {
        for (uint32_t source = 0; source < setup_.ranks; ++source) {
          check(shape_.find_counts(call, source), shape_.count_entries());
          for (uint32_t token = 0; token < setup_.max_tokens; ++token)
            check(shape_.find_places(call, source, token), setup_.top_k);
        }
      }
      if (!wrong.empty()) return wrong;
    }
    return shape_.count_entries() == 0 ? "there are no entries" : "";
  }
  MoePair<T> draw(uint64_t seed, MoeOrder order) {
    const auto allocate = [&](uint32_t rank, size_t length) -> char* {
      if (!setup_.in_windows) return nullptr;
      // The places differ between ranks.
      const size_t begin = allocated_[rank] + 16 * ((seed + rank) % 3);
      allocated_[rank] = begin + (length / 16 + 1) * 16;
      EXPECT_LE(allocated_[rank], window_bytes()) << "the windows are full";
      return fleet_.template data<char>(static_cast<int32_t>(rank),
                                        Fleet::kDataBytes + find_windows() + begin);
    };
    return MoePair<T>(setup_, shape_, seed, order, seed % 3 != 0, seed % 2 == 0, allocate);
  }

  // A call of all ranks: pair number `pair`, its dispatch or its combine.
  struct Step {
    size_t pair;
    bool is_combine;
  };
  // Calls in this order on each rank, each a kernel behind the one before. Grids differ from call to call.
  std::string run(uint64_t seed, std::vector<MoePair<T>>& pairs, const std::vector<Step>& steps) {
    emulator::World world(seed, kPatient);
    uint32_t all_blocks = 0;
    std::vector<bool> are_dispatched(pairs.size());
    for (const Step& step : steps)
      if (!step.is_combine) are_dispatched[step.pair] = true;
    for (uint32_t rank = 0; rank < setup_.ranks; ++rank) {
      if (!shape_.is_living(rank)) continue;
      emulator::Grid* earlier = nullptr;
      const auto add = [&](auto what, size_t pair) {
        if (!setup_.in_windows) return;
        earlier = world.add_grid(
            rank, 1, setup_.threads,
            [=, &pairs] {
              device::wait_for_earlier_grids();
              (pairs[pair].*what)(rank);
            },
            1, earlier);
      };
      for (size_t pair = 0; pair < pairs.size() && setup_.in_windows; ++pair)
        pairs[pair].hide_expert_rows(rank);
      for (size_t i = 0; i < steps.size(); ++i) {
        const uint32_t blocks = i % 3 == 1 ? 1 : setup_.blocks;
        if (steps[i].is_combine) add(&MoePair<T>::write_expert_rows, steps[i].pair);
        for (const uint32_t phases : list_phases(steps[i].is_combine)) {
          all_blocks += blocks;
          earlier = world.add_grid(
              rank, blocks, setup_.threads,
              [=, this, &pairs, &steps] {
                device::wait_for_earlier_grids();
                // Ranks come late, another one each time.
                if ((seed + i + rank) % 3 == 0) device::pause(500'000);
                emulator::require_done(call(rank, pairs[steps[i].pair], steps[i].is_combine, phases),
                                       "the call");
                end_block();
              },
              1, earlier);
        }
        add(steps[i].is_combine ? &MoePair<T>::spoil_expert_rows : &MoePair<T>::see_received, steps[i].pair);
      }
    }
    if (hosts_) hosts_->serve(world, seed, all_blocks);
    const std::string wrong = world.run();
    for (size_t pair = 0; pair < pairs.size() && setup_.in_windows; ++pair)
      for (uint32_t rank = 0; rank < setup_.ranks; ++rank)
        if (shape_.is_living(rank)) pairs[pair].restore(rank, are_dispatched[pair]);
    return wrong;
  }
  // Runs `kernel(rank, step)` on the first `count` ranks: `steps` grids of each rank, one after the other.
  // Waits of the grids end after `timeout_ns`. The test fails if the run fails.
  void run_late(uint64_t seed, uint32_t count, uint32_t blocks, uint64_t timeout_ns,
                const std::function<void(uint32_t rank, size_t step)>& kernel, size_t steps = 1) {
    emulator::World world(seed, kPatient);
    for (uint32_t rank = 0; rank < count; ++rank) {
      fleet_.context(static_cast<int32_t>(rank)).timeout_ns = timeout_ns;
      emulator::Grid* earlier = nullptr;
      for (size_t step = 0; step < steps; ++step)
        earlier = world.add_grid(
            rank, blocks, setup_.threads,
            [&kernel, rank, step] {
              device::wait_for_earlier_grids();
              kernel(rank, step);
            },
            1, earlier);
    }
    EXPECT_EQ(world.run(), "") << "seed " << seed;
  }
  // Ends a block as far as the NICs are concerned.
  void end_block() {
    if (!hosts_) return;
    device::sync_block();
    if (device::thread_index() == 0) hosts_->end();
  }
  // The kernels of a call.
  std::vector<uint32_t> list_phases(bool is_combine) const {
    const bool is_grouped = !is_combine && setup_.is_grouped();
    const uint32_t place = is_grouped ? device::kMoePlace : 0;
    if (!setup_.has_phases) return {kBoth | place};
    std::vector<uint32_t> phases = {device::kMoeSend, device::kMoeReceive};
    if (!is_grouped) return phases;
    // Ids and rows in a kernel each, or together.
    if (setup_.has_ids_first) {
      phases.push_back(place);
    } else {
      phases.back() |= place;
    }
    return phases;
  }
  SymmStatus call(uint32_t rank, MoePair<T>& pair, bool is_combine, uint32_t phases = kBoth) {
    const SymmWorkspace<> mine = workspace(rank);
    if (is_combine) {
      MoeCombine told = pair.combine(rank);
      told.phases = phases;
      switch (pair.order()) {
        case MoeOrder::kRows:
          return call_combine<MoeOrder::kRows>(rank, mine, told);
        case MoeOrder::kReduced:
          return call_combine<MoeOrder::kReduced>(rank, mine, told);
        case MoeOrder::kExact:
          return call_near_combine<MoeOrder::kExact>(rank, mine, told);
      }
    }
    MoeDispatch told = pair.dispatch(rank);
    told.phases = phases;
    if (setup_.cast == MoeCast::kNone) return call_rows<device::MoeRowBytes>(rank, mine, told);
    return call_rows<device::MoeRowCast<T>>(rank, mine, told);
  }
  // A dispatch of rows of another length.
  SymmStatus call_format(uint32_t rank, MoePair<T>& pair, uint32_t row_bytes) {
    MoeDispatch told = pair.dispatch(rank);
    told.row_bytes = row_bytes;
    return call_rows<device::MoeRowBytes>(rank, workspace(rank), told);
  }
  // The shape and the hosts as a rank sees them.
  MoeShape shape_of(uint32_t rank) const {
    MoeShape shape = shape_;
    shape.near &= hosts_of(rank).ranks[setup_.host_of(rank)];
    return shape;
  }
  device::MoeHosts hosts_of(uint32_t rank) const {
    device::MoeHosts hosts{};
    for (uint32_t other = 0; other < setup_.ranks; ++other) hosts.ranks[setup_.host_of(other)] |= 1U << other;
    hosts.mine = setup_.host_of(rank);
    for (uint32_t other = 0; other < rank; ++other)
      if (setup_.host_of(other) == hosts.mine) ++hosts.index;
    return hosts;
  }

 private:
  // Some ranks send and receive in turn, if one kernel does all phases.
  static bool is_in_turn(uint32_t rank, uint32_t phases) {
    return (phases & device::kMoeSend) != 0 && phases != device::kMoeSend && (rank + rank / 2) % 2 == 1;
  }
  // The windows lie behind find_windows() bytes of a rank's data, with room for the tensors of many pairs.
  uint64_t find_windows() const {
    return Fleet::measure_workspace(static_cast<int32_t>(setup_.ranks), 2 * setup_.blocks, slot_bytes_);
  }
  uint64_t window_bytes() const {
    constexpr uint64_t kPairs = 16, kMargins = 4 * 64;
    const uint64_t rows = setup_.sent_bytes() + setup_.stored_scale_bytes() + setup_.row_bytes;
    return setup_.in_windows
               ? kPairs * (setup_.output_rows() * rows + MoeHandleLayout::of(shape_).bytes + kMargins)
               : 0;
  }
  template <MoeOrder kOrder>
  SymmStatus call_near_combine(uint32_t rank, const SymmWorkspace<>& mine, const MoeCombine& told) const {
    using device::MoeCombineKernel, device::MoeOneHost, device::MoeFlow;
    if constexpr (kOrder == MoeOrder::kRows) {
      if (setup_.in_windows)
        return MoeCombineKernel<T, kOrder, MoeOneHost, MoeFlow::kInWindows>(mine, shape_, told).run();
    }
    if (is_in_turn(rank, told.phases))
      return MoeCombineKernel<T, kOrder, MoeOneHost, MoeFlow::kInTurn>(mine, shape_, told).run();
    return MoeCombineKernel<T, kOrder>(mine, shape_, told).run();
  }
  template <MoeOrder kOrder>
  SymmStatus call_combine(uint32_t rank, const SymmWorkspace<>& mine, const MoeCombine& told) const {
    if (!hosts_) return call_near_combine<kOrder>(rank, mine, told);
    const MoeShape shape = shape_of(rank);
    const device::MoeHosts hosts = hosts_of(rank);
    const device::MoeFarHosts far(mine, shape, hosts, device::MoeKind::kCombine);
    return device::MoeCombineKernel<T, kOrder, device::MoeFarHosts>(mine, shape, told, far).run();
  }
  template <typename Rows>
  SymmStatus call_rows(uint32_t rank, const SymmWorkspace<>& mine, const MoeDispatch& told) const {
    return setup_.is_grouped() ? call_dispatch<Rows, true>(rank, mine, told)
                               : call_dispatch<Rows, false>(rank, mine, told);
  }
  template <typename Rows, bool kIsGrouped>
  SymmStatus call_dispatch(uint32_t rank, const SymmWorkspace<>& mine, const MoeDispatch& told) const {
    using device::MoeDispatchKernel, device::MoeOneHost, device::MoeFlow;
    if constexpr (!kIsGrouped) {
      if (setup_.in_windows)
        return MoeDispatchKernel<Rows, false, MoeOneHost, MoeFlow::kInWindows>(mine, shape_, told).run();
    }
    if (!hosts_ && is_in_turn(rank, told.phases))
      return MoeDispatchKernel<Rows, kIsGrouped, MoeOneHost, MoeFlow::kInTurn>(mine, shape_, told).run();
    if (!hosts_) return MoeDispatchKernel<Rows, kIsGrouped>(mine, shape_, told).run();
    const MoeShape shape = shape_of(rank);
    const device::MoeHosts hosts = hosts_of(rank);
    const device::MoeFarHosts far(mine, shape, hosts, device::MoeKind::kDispatch);
    return MoeDispatchKernel<Rows, kIsGrouped, device::MoeFarHosts>(mine, shape, told, far).run();
  }
  static MoeShape make_shape(const MoeSetup& setup) {
    MoeShape shape{};
    shape.set_experts(setup.ranks, setup.experts);
    shape.max_tokens = setup.max_tokens;
    shape.top_k = setup.top_k;
    shape.max_blocks = setup.blocks;
    shape.combine_packets = setup.row_bytes / 16;
    shape.row_packets = setup.sent_bytes() / 16 + (setup.sent_scale_bytes() + 15) / 16;
    shape.rows_of_token = setup.has_exact ? setup.top_k : std::min(setup.ranks / setup.hosts, setup.top_k);
    shape.hosts = setup.hosts;
    shape.in_windows = setup.in_windows ? 1 : 0;
    shape.chunk_bits = setup.chunk_bits;
    return shape;
  }
  static uint64_t find_slot_bytes(const MoeShape& shape) {
    const uint64_t slots = uint64_t{2} * shape.max_blocks * kSymmTurns * shape.ranks;
    return (shape.workspace_bytes() / slots / kSymmSlotUnit + 1) * kSymmSlotUnit;
  }

  const MoeSetup setup_;
  MoeShape shape_;
  const uint64_t slot_bytes_;
  Fleet fleet_;
  std::vector<size_t> allocated_;  // bytes of each rank's windows
  std::optional<Hosts> hosts_;
};

}  // namespace verbena::device_test
