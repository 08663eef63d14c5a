// The kernel, the grid and the parts of rows that are chosen for a mixture-of-experts call.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "device/ops/moe_choice.h"

namespace verbena::ops {
namespace {

using device::MoeKind;

constexpr uint32_t kDispatched = 7168, kCombined = 2 * 7168;  // bytes of a row

device::MoeShape shape_of(uint32_t ranks) {
  device::MoeShape shape{};
  shape.set_experts(ranks, 256);
  return shape;
}
void expect(const MoeChoice& choice, MoeFamily family, uint32_t blocks, uint32_t threads, uint32_t send_bits,
            uint32_t receive_bits) {
  EXPECT_EQ(choice.family, family);
  EXPECT_EQ(choice.grid.blocks, blocks);
  EXPECT_EQ(choice.grid.threads, threads);
  EXPECT_EQ(choice.parts.send_bits, send_bits);
  EXPECT_EQ(choice.parts.receive_bits, receive_bits);
}

TEST(MoeChoice, TheBlocksOfAShortBatchHaveFewWarps) {
  const struct {
    MoeKind kind;
    uint32_t tokens, threads, send_bits, receive_bits;
  } kCases[] = {
      {MoeKind::kDispatch, 0, 64, 4, 4},    {MoeKind::kDispatch, 1, 64, 4, 4},
      {MoeKind::kDispatch, 8, 64, 4, 4},    {MoeKind::kDispatch, 32, 96, 3, 2},
      {MoeKind::kDispatch, 64, 192, 3, 2},  {MoeKind::kDispatch, 128, 384, 3, 2},
      {MoeKind::kDispatch, 256, 512, 3, 2}, {MoeKind::kCombine, 1, 64, 5, 5},
      {MoeKind::kCombine, 8, 64, 4, 5},     {MoeKind::kCombine, 64, 384, 3, 4},
      {MoeKind::kCombine, 128, 512, 3, 4},
  };
  for (const auto& one : kCases) {
    SCOPED_TRACE(std::to_string(one.tokens) + (one.kind == MoeKind::kDispatch ? " dispatched" : " combined"));
    const uint32_t row_bytes = one.kind == MoeKind::kDispatch ? kDispatched : kCombined;
    expect(choose_moe(shape_of(2), {one.kind, one.tokens, row_bytes, 128, false, true}), MoeFamily::kOneHost,
           128, one.threads, one.send_bits, one.receive_bits);
  }
  // With few blocks, each block has more warps. So has a block that stores rows once for each expert, and a
  // block that receives headers of more ranks or, perhaps, more tokens of other ranks.
  expect(choose_moe(shape_of(2), {MoeKind::kDispatch, 8, kDispatched, 24, false, true}), MoeFamily::kOneHost,
         24, 128, 3, 2);
  expect(choose_moe(shape_of(2), {MoeKind::kDispatch, 8, kDispatched, 128, true, true}), MoeFamily::kOneHost,
         128, 256, 4, 4);
  EXPECT_EQ(choose_moe(shape_of(8), {MoeKind::kDispatch, 1, kDispatched, 128, false, true}).grid.threads,
            256U);
  EXPECT_EQ(choose_moe(shape_of(32), {MoeKind::kDispatch, 1, kDispatched, 128, false, true}).grid.threads,
            512U);
  device::MoeShape large = shape_of(2);
  for (const auto& [tokens, threads] : {std::pair{128U, 64U}, {1024U, 96U}, {4096U, 384U}}) {
    large.max_tokens = tokens;
    EXPECT_EQ(choose_moe(large, {MoeKind::kDispatch, 0, kDispatched, 128, false, true}).grid.threads,
              threads);
  }
}

TEST(MoeChoice, ALongBatchIsSentAndReceivedInTurn) {
  const device::MoeShape shape = shape_of(2);
  const auto choose = [&](uint32_t tokens, bool is_whole) {
    return choose_moe(shape, {MoeKind::kDispatch, tokens, kDispatched, 128, false, is_whole});
  };
  EXPECT_EQ(choose(511, true).family, MoeFamily::kOneHost);
  expect(choose(512, true), MoeFamily::kInTurn, 128, 512, 2, 2);
  expect(choose(4096, true), MoeFamily::kInTurn, 128, 512, 2, 2);
  EXPECT_EQ(choose(512, false).family, MoeFamily::kOneHost);
  // Also if rows are so short that the blocks have few warps.
  const MoeCallSize call{MoeKind::kDispatch, 511, 64, 128, false, true};
  EXPECT_LT(choose_moe(shape, call).grid.threads, 512U);
  EXPECT_EQ(choose_moe(shape, call).family, MoeFamily::kOneHost);
}

TEST(MoeChoice, InWindowsAWarpHasManyParts) {
  device::MoeShape shape = shape_of(2);
  shape.in_windows = 1;
  expect(choose_moe(shape, {MoeKind::kDispatch, 4096, kDispatched, 24, false, true}), MoeFamily::kInWindows,
         24, 512, 2, 2);
  // No part is shorter than what a thread of a combine loads at a time.
  expect(choose_moe(shape, {MoeKind::kCombine, 1024, kCombined, 128, false, true}), MoeFamily::kInWindows,
         128, 512, 2, 2);
  expect(choose_moe(shape, {MoeKind::kCombine, 4096, kCombined, 24, false, true}), MoeFamily::kInWindows, 24,
         512, 2, 2);
}

TEST(MoeChoice, BetweenHostsAllWarpsAreUsed) {
  device::MoeShape shape = shape_of(2);
  shape.hosts = 2;
  const MoeChoice choice = choose_moe(shape, {MoeKind::kDispatch, 1, kDispatched, 64, false, true});
  EXPECT_EQ(choice.family, MoeFamily::kFar);
  EXPECT_EQ(choice.grid.blocks, 64U);
  EXPECT_EQ(choice.grid.threads, 512U);
}

TEST(MoeChoice, ChunksBetweenHosts) {
  EXPECT_EQ(choose_chunk_bits(1), 2U);
  EXPECT_EQ(choose_chunk_bits(127), 2U);
  EXPECT_EQ(choose_chunk_bits(128), 3U);
  EXPECT_EQ(choose_chunk_bits(4096), 5U);
}

}  // namespace
}  // namespace verbena::ops
