// NCCL's array of costs, as it lies on NCCL's stack.
#pragma once

#include <gtest/gtest.h>

#include <ostream>

#include "tuner/cost_table.h"

namespace verbena::tuner {

struct CostArray {
  float entries[kAlgorithmCount][kProtocolCount];

  CostArray() { fill(kIgnored); }
  void fill(float cost) {
    for (auto& row : entries) {
      for (float& entry : row) entry = cost;
    }
  }
  float& at(Algorithm algorithm, Protocol protocol) {
    return entries[number_of(algorithm)][number_of(protocol)];
  }
  CostTable table() { return {&entries[0][0], kAlgorithmCount, kProtocolCount}; }
  bool operator==(const CostArray& other) const {
    for (int a = 0; a < kAlgorithmCount; ++a) {
      for (int p = 0; p < kProtocolCount; ++p) {
        if (entries[a][p] != other.entries[a][p]) return false;
      }
    }
    return true;
  }
  // What NCCL does with it: the first of the cheapest.
  std::pair<Algorithm, Protocol> choose() const {
    std::pair<Algorithm, Protocol> choice{};
    float best = 3.4e38f;
    for (int a = 0; a < kAlgorithmCount; ++a) {
      for (int p = 0; p < kProtocolCount; ++p) {
        if (entries[a][p] < 0.0f || entries[a][p] >= best) continue;
        best = entries[a][p];
        choice = {static_cast<Algorithm>(a), static_cast<Protocol>(p)};
      }
    }
    return choice;
  }
};

inline std::ostream& operator<<(std::ostream& out, Algorithm algorithm) {
  return out << name_of(algorithm);
}
inline std::ostream& operator<<(std::ostream& out, Protocol protocol) {
  return out << name_of(protocol);
}

}  // namespace verbena::tuner
