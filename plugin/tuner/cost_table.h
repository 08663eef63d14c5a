// NCCL's table of costs for one call of a collective: microseconds by its own model, or kIgnored for a
// combination that NCCL, the user's NCCL_ALGO and NCCL_PROTO, or the guard excludes. NCCL takes the cheapest.
#pragma once

#include "tuner/kind.h"

namespace verbena::tuner {

inline constexpr float kIgnored = -1.0f;

// A view of NCCL's memory: rows are algorithms, columns are protocols. A release may have more or fewer of
// them than this code knows; unknown entries are never changed.
class CostTable {
 public:
  CostTable(float* entries, int algorithms, int protocols)
      : entries_(entries), algorithms_(algorithms), protocols_(protocols) {}

  // Returns null if the release has no such entry.
  float* find(Algorithm algorithm, Protocol protocol) const {
    const int row = number_of(algorithm), column = number_of(protocol);
    if (row >= algorithms_ || column >= protocols_) return nullptr;
    return entries_ + row * protocols_ + column;
  }
  bool is_allowed(Algorithm algorithm, Protocol protocol) const {
    const float* const entry = find(algorithm, protocol);
    return entry != nullptr && *entry >= 0.0f;
  }
  bool has_choice() const {
    for (int i = 0; i < algorithms_ * protocols_; ++i) {
      if (entries_[i] >= 0.0f) return true;
    }
    return false;
  }

 private:
  float* entries_;
  int algorithms_;
  int protocols_;
};

// Calls `visit(algorithm, protocol, entry)` for every allowed entry that this code knows.
template <typename Visit>
void visit_allowed(const CostTable& table, const Visit& visit) {
  for (int a = 0; a < kAlgorithmCount; ++a) {
    for (int p = 0; p < kProtocolCount; ++p) {
      const auto algorithm = static_cast<Algorithm>(a);
      const auto protocol = static_cast<Protocol>(p);
      if (table.is_allowed(algorithm, protocol)) visit(algorithm, protocol, *table.find(algorithm, protocol));
    }
  }
}

}  // namespace verbena::tuner
