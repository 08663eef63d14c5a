#include "nccl-perf/collective.h"

#include <gtest/gtest.h>

#include <vector>

#include "nccl-perf/element.h"

namespace verbena::tools::nccl {
namespace {

using Buffer = std::vector<uint32_t>;
constexpr uint32_t kSalt = 9;

Buffer make_send_buffer(const Shape& shape, uint32_t rank) {
  Buffer buffer(shape.send_elements);
  fill_elements(buffer, 0, rank, kSalt);
  return buffer;
}

// The operations by their definitions, element by element.
uint32_t compute_result(Operation operation, const std::vector<Buffer>& sends, uint64_t count, uint32_t rank,
                        uint64_t index) {
  const auto ranks = static_cast<uint32_t>(sends.size());
  const uint64_t part = index / count;
  uint32_t sum = 0;
  switch (operation) {
    case Operation::kAllReduce:
      for (const Buffer& send : sends) sum += send[index];
      return sum;
    case Operation::kReduceScatter:
      for (const Buffer& send : sends) sum += send[rank * count + index];
      return sum;
    case Operation::kAllGather:
      return sends[part][index % count];
    case Operation::kAllToAll:
      return sends[part][rank * count + index % count];
    case Operation::kBroadcast:
      return sends[0][index];
    case Operation::kSendRecv:
      return sends[(rank + ranks - 1) % ranks][index];
  }
  return 0;
}

// In two pieces, as what is longer than the staging memory.
uint64_t check(const Buffer& buffer, const std::vector<Expectation>& parts) {
  uint64_t wrong = 0;
  for (const Expectation& expected : parts) {
    const std::span<const uint32_t> part(buffer.data() + expected.offset, expected.count);
    wrong += count_wrong_elements(part.first(3), 0, expected, kSalt) +
             count_wrong_elements(part.subspan(3), 3, expected, kSalt);
  }
  return wrong;
}

TEST(Collective, ExpectationsMatchTheDefinitions) {
  for (const Operation operation : kAllOperations) {
    for (const uint32_t ranks : {2U, 3U, 8U}) {
      const Shape shape = make_shape(operation, 400, ranks);
      std::vector<Buffer> sends;
      for (uint32_t rank = 0; rank < ranks; ++rank) sends.push_back(make_send_buffer(shape, rank));
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        Buffer result(shape.receive_elements);
        for (size_t index = 0; index < result.size(); ++index) {
          result[index] = compute_result(operation, sends, shape.count, rank, index);
        }
        const auto parts = list_expectations(operation, shape, rank, ranks);
        EXPECT_EQ(check(result, parts), 0U) << describe_operation(operation) << " " << ranks;
        std::swap(result.front(), result.back());
        EXPECT_EQ(check(result, parts), 2U) << describe_operation(operation) << " " << ranks;
      }
    }
  }
}

TEST(Collective, ShapesCountAsNcclTestsDo) {
  const Shape gather = make_shape(Operation::kAllGather, 1024, 4);
  EXPECT_EQ(gather.count, 64U);
  EXPECT_EQ(gather.size_bytes, 1024U);
  EXPECT_EQ(gather.send_elements, 64U);
  EXPECT_EQ(gather.receive_elements, 256U);
  const Shape scatter = make_shape(Operation::kReduceScatter, 1024, 4);
  EXPECT_EQ(scatter.send_elements, 256U);
  EXPECT_EQ(scatter.receive_elements, 64U);
  EXPECT_EQ(make_shape(Operation::kAllReduce, 1024, 4).count, 256U);
  // Eight bytes for four ranks would be nothing for each.
  EXPECT_EQ(make_shape(Operation::kAllToAll, 8, 4).size_bytes, 16U);
}

TEST(Collective, BusFactors) {
  EXPECT_DOUBLE_EQ(compute_bus_factor(Operation::kAllReduce, 2), 1.0);
  EXPECT_DOUBLE_EQ(compute_bus_factor(Operation::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(compute_bus_factor(Operation::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(compute_bus_factor(Operation::kSendRecv, 4), 1.0);
}

TEST(Collective, ParsesNames) {
  for (const Operation operation : kAllOperations)
    EXPECT_EQ(parse_operation(describe_operation(operation)), operation);
  EXPECT_EQ(parse_operation("alltoall"), Operation::kAllToAll);
  EXPECT_EQ(parse_operation("Send-Recv"), Operation::kSendRecv);
  EXPECT_FALSE(parse_operation("gather").has_value());
}

TEST(Elements, TellRanksAndRoundsApart) {
  Buffer own(1000), later(1000), other(1000);
  fill_elements(own, 0, 5, kSalt);
  fill_elements(later, 0, 5, kSalt + 1);
  fill_elements(other, 0, 6, kSalt);
  const Expectation expected{0, 1000, 0, 5, 1};
  EXPECT_EQ(count_wrong_elements(own, 0, expected, kSalt), 0U);
  EXPECT_EQ(count_wrong_elements(own, 1, expected, kSalt), 1000U) << "shifted by one";
  EXPECT_EQ(count_wrong_elements(later, 0, expected, kSalt), 1000U);
  EXPECT_EQ(count_wrong_elements(other, 0, expected, kSalt), 1000U);
  own[17] ^= 0x80000000U;
  EXPECT_EQ(count_wrong_elements(own, 0, expected, kSalt), 1U);
}

// The part of one rank that is missing, or there twice.
TEST(Elements, SumsTellEveryPart) {
  for (uint32_t ranks = 2; ranks <= 16; ++ranks) {
    Buffer sum(100), part(100);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      fill_elements(part, 0, rank, kSalt);
      for (size_t index = 0; index < sum.size(); ++index) sum[index] += part[index];
    }
    const Expectation expected{0, 100, 0, 0, ranks};
    EXPECT_EQ(count_wrong_elements(sum, 0, expected, kSalt), 0U) << ranks;
    for (size_t index = 0; index < sum.size(); ++index) sum[index] += part[index];
    EXPECT_EQ(count_wrong_elements(sum, 0, expected, kSalt), 100U) << ranks;
  }
}

}  // namespace
}  // namespace verbena::tools::nccl
