#include "nccl-perf/collective.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>

namespace verbena::tools::nccl {
namespace {

std::string strip_name(std::string_view name) {
  std::string letters;
  for (const unsigned char c : name) {
    if (std::isalpha(c) != 0) letters += static_cast<char>(std::tolower(c));
  }
  return letters;
}

}  // namespace

const char* describe_operation(Operation operation) {
  static constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                           "broadcast",  "send_recv",  "all_to_all"};
  static_assert(std::size(kNames) == std::size(kAllOperations));
  return kNames[static_cast<size_t>(operation)];
}

std::optional<Operation> parse_operation(std::string_view name) {
  for (const Operation operation : kAllOperations) {
    if (strip_name(name) == strip_name(describe_operation(operation))) return operation;
  }
  return std::nullopt;
}

bool reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduceScatter;
}

Shape make_shape(Operation operation, uint64_t size_bytes, uint32_t ranks) {
  const bool divided = operation == Operation::kAllGather || operation == Operation::kReduceScatter ||
                       operation == Operation::kAllToAll;
  const uint64_t parts = divided ? ranks : 1;
  Shape shape;
  shape.count = std::max<uint64_t>(size_bytes / kElementBytes / parts, 1);
  const uint64_t whole = shape.count * parts;
  shape.size_bytes = whole * kElementBytes;
  shape.send_elements = operation == Operation::kAllGather ? shape.count : whole;
  shape.receive_elements = operation == Operation::kReduceScatter ? shape.count : whole;
  return shape;
}

std::vector<Expectation> list_expectations(Operation operation, const Shape& shape, uint32_t rank,
                                           uint32_t ranks) {
  const uint64_t count = shape.count;
  const auto own_part = static_cast<uint32_t>(rank * count);
  std::vector<Expectation> parts;
  switch (operation) {
    case Operation::kAllReduce:
      return {{0, count, 0, 0, ranks}};
    case Operation::kReduceScatter:
      return {{0, count, own_part, 0, ranks}};
    case Operation::kBroadcast:
      return {{0, count, 0, 0, 1}};
    case Operation::kSendRecv:
      return {{0, count, 0, (rank + ranks - 1) % ranks, 1}};
    case Operation::kAllGather:
      for (uint32_t from = 0; from < ranks; ++from) parts.push_back({from * count, count, 0, from, 1});
      break;
    case Operation::kAllToAll:
      for (uint32_t from = 0; from < ranks; ++from) parts.push_back({from * count, count, own_part, from, 1});
      break;
  }
  return parts;
}

double compute_bus_factor(Operation operation, uint32_t ranks) {
  const double n = ranks;
  switch (operation) {
    case Operation::kAllReduce:
      return 2 * (n - 1) / n;
    case Operation::kAllGather:
    case Operation::kReduceScatter:
    case Operation::kAllToAll:
      return (n - 1) / n;
    case Operation::kBroadcast:
    case Operation::kSendRecv:
      break;
  }
  return 1;
}

}  // namespace verbena::tools::nccl
