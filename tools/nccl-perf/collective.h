#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace verbena::tools::nccl {

enum class Operation { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kSendRecv, kAllToAll };

inline constexpr Operation kAllOperations[] = {Operation::kAllReduce,     Operation::kAllGather,
                                               Operation::kReduceScatter, Operation::kBroadcast,
                                               Operation::kSendRecv,      Operation::kAllToAll};

const char* describe_operation(Operation operation);
// all_reduce, all_gather, reduce_scatter, broadcast, send_recv, all_to_all; also with dashes or without
// separators.
std::optional<Operation> parse_operation(std::string_view name);
bool reduces(Operation operation);

// One size of one operation, counted as in nccl-tests: `size_bytes` is the larger of the bytes that a rank
// sends and receives, `count` the argument of the NCCL call.
struct Shape {
  uint64_t size_bytes = 0;
  uint64_t count = 0;
  uint64_t send_elements = 0;
  uint64_t receive_elements = 0;
};

inline constexpr uint64_t kElementBytes = 4;

// Rounds the size down to whole elements for every rank, but not to zero.
Shape make_shape(Operation operation, uint64_t size_bytes, uint32_t ranks);

// The expected content of a part of a rank's result. The part begins at element `offset` and has `count`
// elements. Element i is the sum over ranks first_rank .. first_rank + rank_count - 1 of their element
// base_index + i.
struct Expectation {
  uint64_t offset = 0;
  uint64_t count = 0;
  uint32_t base_index = 0;
  uint32_t first_rank = 0;
  uint32_t rank_count = 1;
};

std::vector<Expectation> list_expectations(Operation operation, const Shape& shape, uint32_t rank,
                                           uint32_t ranks);

// Bus bandwidth over algorithm bandwidth, as nccl-tests define them.
double compute_bus_factor(Operation operation, uint32_t ranks);

}  // namespace verbena::tools::nccl
