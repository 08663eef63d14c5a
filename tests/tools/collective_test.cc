#include "nccl-perf/collective.h"

#include <gtest/gtest.h>

#include "nccl-perf/element.h"
#include "nccl-perf/kernels.h"
#include "tools/ptx_interpreter.h"

namespace verbena::tools::nccl {
namespace {

using Buffer = std::vector<uint32_t>;
constexpr uint32_t kSalt = 9;

Buffer make_send_buffer(const Shape& shape, uint32_t rank) {
  Buffer buffer(shape.send_elements);
  for (size_t index = 0; index < buffer.size(); ++index) {
    buffer[index] = compute_element(static_cast<uint32_t>(index), compute_seed(rank, kSalt));
  }
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

uint64_t check_with_kernel(const Buffer& buffer, const std::vector<Expectation>& parts) {
  static const PtxProgram program(kKernelText);
  uint64_t wrong = 0;
  for (const Expectation& expected : parts) {
    uint64_t data = reinterpret_cast<uint64_t>(buffer.data() + expected.offset);
    uint64_t count = expected.count;
    uint32_t base_index = expected.base_index;
    uint32_t seed = compute_seed(expected.first_rank, kSalt);
    uint32_t rank_count = expected.rank_count;
    uint32_t rank_step = kRankStep;
    uint64_t counter = reinterpret_cast<uint64_t>(&wrong);
    void* arguments[] = {&data, &count, &base_index, &seed, &rank_count, &rank_step, &counter};
    program.launch("check_elements", {3, 4}, arguments);
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
        EXPECT_EQ(check_with_kernel(result, parts), 0U) << describe_operation(operation) << " " << ranks;
        std::swap(result.front(), result.back());
        EXPECT_EQ(check_with_kernel(result, parts), 2U) << describe_operation(operation) << " " << ranks;
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

TEST(Kernels, FillComputesTheElements) {
  const PtxProgram program(kKernelText);
  Buffer buffer(1000);
  uint64_t data = reinterpret_cast<uint64_t>(buffer.data());
  uint64_t count = 999;
  uint32_t seed = compute_seed(5, kSalt);
  void* arguments[] = {&data, &count, &seed};
  program.launch("fill_elements", {2, 32}, arguments);
  for (uint32_t index = 0; index < count; ++index)
    ASSERT_EQ(buffer[index], compute_element(index, seed)) << index;
  EXPECT_EQ(buffer[999], 0U);
}

}  // namespace
}  // namespace verbena::tools::nccl
