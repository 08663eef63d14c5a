#include "bootstrap/collective_call.h"

#include <algorithm>

namespace verbena::bootstrap {

CollectiveCall::CollectiveCall(const TreeShape& shape, uint32_t rank, Operation operation, base::Bytes mine,
                               std::span<uint8_t> result, base::Deadline its_deadline)
    : deadline(its_deadline),
      shape_(shape),
      rank_(rank),
      operation_(operation),
      mine_(mine),
      result_(result),
      is_heard_(shape.count_ranks),
      expected_(shape.count_within(rank)),
      results_due_(is_apart() ? expected_ : 1) {
  if (rank == 0) gathered_.resize(mine.size() * shape.count_ranks);
  hear(rank, mine);
}

void CollectiveCall::hear(uint32_t rank, base::Bytes contribution) {
  is_heard_[rank] = true;
  ++heard_;
  if (rank_ != 0) return;
  std::copy(contribution.begin(), contribution.end(),
            gathered_.begin() + static_cast<ptrdiff_t>(rank * length_bytes()));
}

bool CollectiveCall::has_heard_all_within(uint32_t child) const {
  for (uint32_t rank = child; rank < shape_.count_ranks; ++rank) {
    if (!is_heard_[rank] && shape_.is_within(rank, child)) return false;
  }
  return true;
}

std::vector<uint32_t> CollectiveCall::list_missing() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = rank_ + 1; rank < shape_.count_ranks; ++rank) {
    if (is_heard_[rank] || !shape_.is_within(rank, rank_)) continue;
    if (is_heard_[shape_.parent_of(rank)]) missing.push_back(rank);
  }
  return missing;
}

std::vector<uint8_t> CollectiveCall::collect_for(uint32_t rank) const {
  const size_t part_bytes = length_bytes() / shape_.count_ranks;
  std::vector<uint8_t> parts(length_bytes());
  for (uint32_t from = 0; from < shape_.count_ranks; ++from) {
    std::copy_n(gathered_.data() + from * length_bytes() + rank * part_bytes, part_bytes,
                parts.data() + from * part_bytes);
  }
  return parts;
}

void CollectiveCall::set_result(base::Bytes bytes) {
  std::copy(bytes.begin(), bytes.end(), result_.begin());
}

}  // namespace verbena::bootstrap
