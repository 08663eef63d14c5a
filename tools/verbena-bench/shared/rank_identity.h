// What differs between the processes of a measurement with several ranks, and unique ids as text. C++17,
// because nvcc compiles its users.
#pragma once
#include <cstdio>
#include <stdexcept>
#include <string>

namespace verbena::tools::bench {

struct RankIdentity {
  std::string id;  // the unique id in hexadecimal digits
  unsigned rank = 0, count_ranks = 2;
  int gpu = 0;
};

inline std::string to_digits(const void* data, size_t length_bytes) {
  std::string digits;
  for (size_t i = 0; i < length_bytes; ++i) {
    char pair[3];
    std::snprintf(pair, sizeof(pair), "%02x", static_cast<const unsigned char*>(data)[i]);
    digits += pair;
  }
  return digits;
}

inline void from_digits(const std::string& digits, void* data, size_t length_bytes) {
  if (digits.size() != 2 * length_bytes)
    throw std::runtime_error("rank 0 sent a unique id of the wrong length");
  for (size_t i = 0; i < length_bytes; ++i)
    static_cast<unsigned char*>(data)[i] =
        static_cast<unsigned char>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
}

}  // namespace verbena::tools::bench
