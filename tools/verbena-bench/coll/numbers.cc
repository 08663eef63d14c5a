#include "verbena-bench/coll/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/error.h"
#include "verbena/device/packed.cuh"

namespace verbena::tools::coll {
namespace {

using device::Bfloat16;
using device::E4m3;
using device::Half;

uint32_t mix(uint32_t bits) {
  bits = (bits ^ bits >> 16) * 0x45d9f3bu;
  bits = (bits ^ bits >> 16) * 0x45d9f3bu;
  return bits ^ bits >> 16;
}

template <typename T>
T draw(uint64_t index, uint32_t rank, uint32_t round) {
  const uint32_t bits = mix(static_cast<uint32_t>(index) * 0x9e3779b1u + rank * 0x85ebca77u + round);
  if constexpr (std::is_same_v<T, int32_t>) {
    return static_cast<int32_t>(bits);
  } else {
    // Within +-16: three hundred of them are finite in every type.
    return device::narrow<T>(static_cast<float>(static_cast<int32_t>(bits) >> 12) / 32768.0F);
  }
}

template <typename T>
Bytes make_input_of(uint64_t count, uint32_t rank, uint32_t round) {
  Bytes bytes(count * sizeof(T));
  for (uint64_t i = 0; i < count; ++i) {
    const T number = draw<T>(i, rank, round);
    std::memcpy(bytes.data() + i * sizeof(T), &number, sizeof(T));
  }
  return bytes;
}

template <typename T>
T reduce(verbena_ops_reduction reduction, uint64_t index, uint32_t ranks, uint32_t round, uint32_t of_host) {
  const auto number = [&](uint32_t rank) { return draw<T>(index, rank, round); };
  if (reduction == VERBENA_OPS_MIN || reduction == VERBENA_OPS_MAX) {
    T result = number(0);
    const auto value = [](T one) {
      if constexpr (std::is_same_v<T, int32_t>) {
        return one;
      } else {
        return device::widen(one);
      }
    };
    for (uint32_t rank = 1; rank < ranks; ++rank) {
      const bool is_less = value(number(rank)) < value(result), is_more = value(result) < value(number(rank));
      if (reduction == VERBENA_OPS_MIN ? is_less : is_more) result = number(rank);
    }
    return result;
  }
  const bool is_mean = reduction == VERBENA_OPS_MEAN;
  if constexpr (std::is_same_v<T, int32_t>) {
    uint32_t sum = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) sum += static_cast<uint32_t>(number(rank));
    return is_mean ? static_cast<int32_t>(sum) / static_cast<int32_t>(ranks) : static_cast<int32_t>(sum);
  } else {
    float sum = 0;
    for (uint32_t first = 0; first < ranks; first += of_host) {
      float part = device::widen(number(first));
      for (uint32_t rank = first + 1; rank < first + of_host; ++rank) part += device::widen(number(rank));
      sum = first == 0 ? part : sum + part;
    }
    return device::narrow<T>(is_mean ? sum / static_cast<float>(ranks) : sum);
  }
}
template <typename T>
Bytes make_reduced_of(verbena_ops_reduction reduction, uint64_t count, uint32_t ranks, uint32_t round,
                      uint32_t of_host) {
  Bytes bytes(count * sizeof(T));
  for (uint64_t i = 0; i < count; ++i) {
    const T result = reduce<T>(reduction, i, ranks, round, of_host);
    std::memcpy(bytes.data() + i * sizeof(T), &result, sizeof(T));
  }
  return bytes;
}

// Calls with a number of the type.
template <typename Call>
auto with_type(verbena_ops_type type, const Call& call) {
  switch (type) {
    case VERBENA_OPS_FLOAT32:
      return call(float{});
    case VERBENA_OPS_FLOAT16:
      return call(Half{});
    case VERBENA_OPS_INT32:
      return call(int32_t{});
    case VERBENA_OPS_E4M3:
      return call(E4m3{});
    case VERBENA_OPS_BFLOAT16:
      break;
  }
  return call(Bfloat16{});
}

}  // namespace

verbena_ops_type find_type(const std::string& name) {
  if (name == "bf16") return VERBENA_OPS_BFLOAT16;
  if (name == "f16") return VERBENA_OPS_FLOAT16;
  if (name == "f32") return VERBENA_OPS_FLOAT32;
  if (name == "i32") return VERBENA_OPS_INT32;
  if (name == "e4m3") return VERBENA_OPS_E4M3;
  throw UsageError("unknown type: " + name);
}

uint64_t get_element_bytes(verbena_ops_type type) {
  return with_type(type, [](auto number) { return uint64_t{sizeof(number)}; });
}

int find_nccl_type(verbena_ops_type type) {
  switch (type) {
    case VERBENA_OPS_FLOAT32:
      return 7;
    case VERBENA_OPS_FLOAT16:
      return 6;
    case VERBENA_OPS_BFLOAT16:
      return 9;
    case VERBENA_OPS_INT32:
      return 2;
    case VERBENA_OPS_E4M3:
      break;
  }
  return -1;
}

Bytes make_input(verbena_ops_type type, uint64_t count, uint32_t rank, uint32_t round) {
  return with_type(type, [&](auto number) { return make_input_of<decltype(number)>(count, rank, round); });
}

Bytes make_reduced(verbena_ops_type type, verbena_ops_reduction reduction, uint64_t count, uint32_t ranks,
                   uint32_t round, uint32_t of_host) {
  return with_type(type, [&](auto number) {
    return make_reduced_of<decltype(number)>(reduction, count, ranks, round, of_host);
  });
}

std::vector<float> widen_all(verbena_ops_type type, const Bytes& elements) {
  return with_type(type, [&](auto number) {
    std::vector<float> numbers(elements.size() / sizeof(number));
    for (size_t i = 0; i < numbers.size(); ++i) {
      std::memcpy(&number, elements.data() + i * sizeof(number), sizeof(number));
      numbers[i] = static_cast<float>(device::widen(number));
    }
    return numbers;
  });
}

float round_number(verbena_ops_type type, float number) {
  return with_type(type, [&](auto kind) {
    if constexpr (std::is_same_v<decltype(kind), int32_t>) {
      return std::trunc(number);
    } else {
      return device::widen(device::narrow<decltype(kind)>(number));
    }
  });
}

double measure_error(verbena_ops_type type, const Bytes& numbers, const Bytes& exact,
                     const std::vector<Bytes>& terms) {
  const std::vector<float> got = widen_all(type, numbers), wanted = widen_all(type, exact);
  double errors = 0, squares = 0, term_squares = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    errors += std::pow(double{got[i]} - double{wanted[i]}, 2);
    squares += std::pow(double{wanted[i]}, 2);
  }
  for (const Bytes& term : terms)
    for (const float number : widen_all(type, term)) term_squares += std::pow(double{number}, 2);
  const double all = std::max(squares, term_squares);
  return all == 0 ? errors : std::sqrt(errors / all);
}

uint64_t hash_bytes(const Bytes& bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

}  // namespace verbena::tools::coll
