// Workspaces: words, epochs and slots that no team and no other workspace shares, for members alone.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <vector>

#include "symm/support/contexts.h"

namespace verbena::symm {
namespace {

using base::Status;
using base::SymmPath;

constexpr WorkspaceShape kShape{.slots_bytes = 1 << 20, .blocks = 256};

const SymmWorkspace<>& kernel_of(const Workspace& workspace) {
  return *reinterpret_cast<const SymmWorkspace<>*>(&workspace.team->context());
}
uint64_t offset_of(const SymmContext& context, const void* address) {
  return reinterpret_cast<uint64_t>(address) - context.heap_begin;
}

class WorkspaceTest : public testing::TestWithParam<SymmPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, WorkspaceTest, testing::Values(SymmPath::kAuto, SymmPath::kRdma), name_path);

TEST_P(WorkspaceTest, HasWordsEpochsAndSlotsOfItsOwn) {
  run_contexts(2, make_settings(GetParam()), [](Context& context) {
    std::vector<std::pair<uint64_t, uint64_t>> taken;  // begin and end in the heap
    const auto note = [&](const SymmContext& kernel, const void* begin, uint64_t length_bytes) {
      const auto first = offset_of(kernel, begin);
      for (const auto& [from, to] : taken) EXPECT_TRUE(first >= to || first + length_bytes <= from);
      taken.emplace_back(first, first + length_bytes);
    };
    const SymmContext& world = context.world().context();
    note(world, world.signals, measure_team_words(2));
    for (int i = 0; i < 2; ++i) {
      const auto made = context.make_workspace(&context.world(), kShape);
      ASSERT_TRUE(made);
      const SymmWorkspace<>& kernel = kernel_of(**made);
      EXPECT_EQ(kernel.context.team_size, 2);
      EXPECT_EQ(kernel.context.team_rank, static_cast<int32_t>(context.rank()));
      EXPECT_EQ(kernel.context.has_remote, world.has_remote);
      EXPECT_EQ(kernel.context.inline_deltas[1 - context.rank()], world.inline_deltas[1 - context.rank()]);
      EXPECT_EQ(kernel.context.abort_word, world.abort_word);
      EXPECT_EQ(kernel.context.first_queue, static_cast<uint32_t>(i + 1))
          << "not the team's, not the other one's";
      EXPECT_EQ(kernel.blocks.count, 256U);
      EXPECT_EQ(kernel.blocks.slot_bytes, (uint64_t{1} << 20) / (256 * kSymmTurns * 2));
      EXPECT_EQ((*made)->slot_bytes(), kernel.blocks.slot_bytes);
      EXPECT_EQ(offset_of(kernel.context, kernel.blocks.slots) % kSymmSlotUnit, 0U);
      note(kernel.context, kernel.context.signals, measure_team_words(2));
      note(kernel.context, kernel.blocks.epochs, 256 * 8);
      note(kernel.context, kernel.blocks.slots, 256 * kSymmTurns * 2 * kernel.blocks.slot_bytes);
      // All of it is zero, and lies in the window.
      const auto* const begin = reinterpret_cast<const char*>((*made)->window->address);
      EXPECT_TRUE(
          std::all_of(begin, begin + (*made)->window->length_bytes, [](char byte) { return byte == 0; }));
      EXPECT_LE(kernel.blocks.slots + 256 * kSymmTurns * 2 * kernel.blocks.slot_bytes,
                begin + (*made)->window->length_bytes);
      const auto* const device = reinterpret_cast<const SymmWorkspace<>*>((*made)->team->device_context());
      EXPECT_EQ(device->blocks.slots, kernel.blocks.slots) << "without a GPU its memory is ours";
    }
  });
}

// The same place at all members, so that one address serves for all.
TEST_P(WorkspaceTest, LiesAtOnePlaceAndOutlivesItsTeam) {
  std::array<std::set<uint64_t>, 3> places;
  run_contexts(3, make_settings(GetParam()), [&](Context& context) {
    const uint32_t rank = context.rank();
    const auto pair = context.make_team(rank < 2 ? std::vector<uint32_t>{1, 0} : std::vector<uint32_t>{});
    ASSERT_TRUE(pair);
    const auto made = context.make_workspace(*pair, {.slots_bytes = 4096, .blocks = 3});
    ASSERT_TRUE(made);
    EXPECT_EQ((*made)->team == nullptr, rank == 2);
    EXPECT_EQ((*made)->slot_bytes(), rank == 2 ? 0U : 4096 / (3 * kSymmTurns * 2) / 128 * 128);
    if (rank < 2) {
      const SymmWorkspace<>& kernel = kernel_of(**made);
      EXPECT_EQ(kernel.context.team_rank, static_cast<int32_t>(1 - rank));
      for (const void* address :
           {static_cast<const void*>(kernel.context.signals),
            static_cast<const void*>(kernel.context.failure), static_cast<const void*>(kernel.blocks.slots)})
        places[rank].insert(offset_of(kernel.context, address));
      context.free_team(**pair);
      EXPECT_EQ(kernel.context.team_size, 2) << "the team has gone, the workspace has not";
    }
    ASSERT_TRUE(context.barrier());
    EXPECT_TRUE(context.reset_workspace(**made));
    EXPECT_TRUE(context.free_workspace(**made));
    EXPECT_TRUE(context.make_workspace(&context.world(), {.slots_bytes = 0, .blocks = 512})) << "no slots";
  });
  EXPECT_EQ(places[0], places[1]);
  EXPECT_EQ(places[0].size(), 3U);
}

TEST_P(WorkspaceTest, AResetMakesItNewAndItsFailureIsItsOwn) {
  run_contexts(2, make_settings(GetParam()), [](Context& context) {
    const auto made = context.make_workspace(&context.world(), kShape);
    const auto other = context.make_workspace(&context.world(), kShape);
    ASSERT_TRUE(made && other);
    const SymmWorkspace<>& kernel = kernel_of(**made);
    kernel.context.arrivals[3] = kernel.context.rounds[2] = kernel.context.signals[255] = 7;
    kernel.blocks.epochs[255] = 9;
    kernel.blocks.slots[256 * kSymmTurns * 2 * kernel.blocks.slot_bytes - 1] = 1;
    *kernel.context.failure = static_cast<uint64_t>(SymmWait::kPacket) | uint64_t{200} << kSymmFailureNumber |
                              uint64_t{1} << kSymmFailurePeer;
    const auto failure = context.find_failures();
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->status, base::Status::kTimeout);
    EXPECT_THAT(failure->text,
                testing::HasSubstr("workspace 1 for team 0 of 2 ranks: rank 0 timed out waiting for a "
                                   "packet of rank 1 in block 200"));
    EXPECT_EQ(context.find_failure(*(*made)->team)->text, failure->text);
    EXPECT_EQ(context.find_failure(*(*other)->team)->text, "");
    ASSERT_TRUE(context.reset_workspace(**made));
    EXPECT_EQ(context.find_failures()->text, "");
    const auto* const begin = reinterpret_cast<const char*>((*made)->window->address);
    EXPECT_TRUE(
        std::all_of(begin, begin + (*made)->window->length_bytes, [](char byte) { return byte == 0; }));
    // Different ones are nobody's, and all can go on.
    Workspace& mine = context.rank() == 0 ? **made : **other;
    EXPECT_EQ(context.reset_workspace(mine).status(), Status::kInvalidUsage);
    EXPECT_EQ(context.free_workspace(mine).status(), Status::kInvalidUsage);
    EXPECT_TRUE(context.free_workspace(**other));
  });
}

TEST_P(WorkspaceTest, WhatCannotBeIsRefusedForAll) {
  run_contexts(2, make_settings(GetParam()), [](Context& context) {
    const uint32_t rank = context.rank();
    const auto make = [&](const Team* team, uint64_t slots_bytes, uint32_t blocks) {
      return context.make_workspace(team, {.slots_bytes = slots_bytes, .blocks = blocks}).error().status;
    };
    EXPECT_EQ(make(&context.world(), 0, 0), Status::kInvalidArgument);
    EXPECT_EQ(make(&context.world(), 0, kSymmMaxBlocks + 1), Status::kInvalidArgument);
    EXPECT_EQ(make(&context.world(), 8 * kSymmTurns * 2 * kSymmSlotUnit - 1, 8), Status::kInvalidArgument);
    EXPECT_EQ(make(&context.world(), UINT64_MAX - 7, 8), Status::kInvalidArgument);
    EXPECT_EQ(make(&context.world(), 4096 << rank, 1), Status::kInvalidUsage);
    EXPECT_EQ(make(&context.world(), 4096, 1 + rank), Status::kInvalidUsage);
    EXPECT_EQ(make(rank == 0 ? &context.world() : nullptr, 4096, 1), Status::kInvalidUsage);
    EXPECT_EQ(make(&context.world(), 16 << 20, 1), Status::kInvalidArgument) << "no room beside the words";
    EXPECT_TRUE(context.make_workspace(&context.world(), kShape));
  });
}

}  // namespace
}  // namespace verbena::symm
