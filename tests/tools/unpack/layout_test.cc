#include "verbena-bench/unpack/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/cpu_unpack.h"
#include "common/error.h"
#include "common/pattern.h"
#include "verbena-bench/unpack/expectation.h"

namespace verbena::tools::unpack {
namespace {

using Kind = PageLengths::Kind;

// A case laid out in this process's memory.
struct LaidOut {
  UnpackRun run;
  std::vector<NetUnpackMeta> queues;
  std::vector<std::byte> bounce, buffers;

  LaidOut(const TestCase& test_case, uint64_t footprint_bytes)
      : run(plan_run(test_case, footprint_bytes)),
        queues(run.connections),
        bounce(run.bounce_bytes()),
        buffers(run.buffer_bytes()) {
    for (uint32_t connection = 0; connection < run.connections; ++connection)
      fill_queue(test_case, run, connection, queues[connection]);
    fill_bounce(run, bounce, queues);
    fill_buffers(buffers);
  }

  // As the kernels do, by the CPU reference.
  void unpack() {
    for (uint32_t connection = 0; connection < run.connections; ++connection) {
      for (uint32_t round = 0; round < run.rounds; ++round) {
        const UnpackDeviceHandle handle{&queues[connection],
                                        bounce.data() + run.bounce_offset(connection, round), 0};
        for (uint32_t slot = 0; slot < run.slots; ++slot) {
          std::byte* const data =
              buffers.data() + run.data_offset(run.message_index(connection, round, slot));
          unpack_slot(handle, slot, {data, run.slice_bytes + run.destination_offset_bytes});
        }
      }
    }
  }
};

TestCase make_case(PageLengths pages, uint64_t slice_bytes, uint32_t source_align,
                   uint32_t destination_align) {
  TestCase test_case;
  test_case.pages = pages;
  test_case.slice_bytes = slice_bytes;
  test_case.source_align = source_align;
  test_case.destination_align = destination_align;
  test_case.slots = 3;
  test_case.blocks = 2;
  return test_case;
}

TEST(Layout, EveryByteArrivesWhereItBelongs) {
  for (const PageLengths pages : {PageLengths{Kind::kFixed, 4096}, PageLengths{Kind::kFixed, 100},
                                  PageLengths{Kind::kMixed, 0}, PageLengths{Kind::kRagged, 0}}) {
    for (const uint64_t slice_bytes : {0, 1, 5000, 70001}) {
      for (uint32_t align = 0; align < 16; align += 5) {
        LaidOut laid_out(make_case(pages, slice_bytes, align, 15 - align), 12 * slice_bytes);
        if (slice_bytes != 0) {
          EXPECT_EQ(laid_out.run.rounds, 2U);
          EXPECT_NE(count_wrong_bytes(laid_out.run, laid_out.buffers), 0U);
        }
        laid_out.unpack();
        EXPECT_EQ(count_wrong_bytes(laid_out.run, laid_out.buffers), 0U)
            << pages.describe() << " " << slice_bytes << " " << align;
      }
    }
  }
}

TEST(Layout, PiecesLieApartAndAligned) {
  const TestCase test_case = make_case({Kind::kFixed, 4096}, 50000, 7, 3);
  const LaidOut laid_out(test_case, 0);
  std::vector<std::pair<uint64_t, uint64_t>> pieces;
  const NetUnpackMeta& meta = laid_out.queues[1];
  EXPECT_EQ(meta.cnt[3], 0U) << "a slot that is not used";
  bool is_in_order = true;
  for (uint32_t slot = 0; slot < test_case.slots; ++slot) {
    EXPECT_EQ(meta.cnt[slot], 13U);
    uint64_t next = 3;
    for (uint64_t index = 0; index < meta.cnt[slot]; ++index) {
      const LoadMeta& piece = meta.mem[slot][index];
      EXPECT_EQ(piece.dst_off, next);
      EXPECT_EQ(piece.src_off % 16, 7U);
      next += piece.len;
      if (!pieces.empty()) is_in_order = is_in_order && pieces.back().first < piece.src_off;
      pieces.emplace_back(piece.src_off, piece.src_off + piece.len);
    }
    EXPECT_EQ(next, 3 + test_case.slice_bytes);
  }
  EXPECT_FALSE(is_in_order) << "the plugin's pages come in no order";
  std::sort(pieces.begin(), pieces.end());
  for (size_t index = 1; index < pieces.size(); ++index)
    EXPECT_LE(pieces[index - 1].second, pieces[index].first);
  EXPECT_LE(pieces.back().second, laid_out.run.bounce_stride_bytes);
}

TEST(Layout, AlignedPagesLieAsDenselyAsThePlugins) {
  TestCase test_case;
  const UnpackRun run = plan_run(test_case, 0);
  EXPECT_EQ(run.bounce_stride_bytes, test_case.slice_bytes * test_case.slots + 256);
  EXPECT_EQ(run.data_offset(7) % 16, 0U);
}

TEST(Layout, RefusesWhatASlotCannotHold) {
  EXPECT_THROW(plan_run(make_case({Kind::kFixed, 16}, 65536, 0, 0), 0), ToolError);
  EXPECT_NO_THROW(plan_run(make_case({Kind::kFixed, 32}, 65536, 0, 0), 0));
}

TEST(Layout, NoticesOneWrongByteAnywhere) {
  LaidOut laid_out(make_case({Kind::kFixed, 4096}, 5000, 1, 5), 0);
  laid_out.unpack();
  const UnpackRun& run = laid_out.run;
  const uint64_t data = run.data_offset(4) + 5;
  for (const uint64_t position :
       {uint64_t{0}, data - 1, data, data + 4999, data + 5000, run.buffer_bytes() - 1}) {
    laid_out.buffers[position] ^= std::byte{1};
    EXPECT_EQ(count_wrong_bytes(run, laid_out.buffers), 1U) << position;
    laid_out.buffers[position] ^= std::byte{1};
  }
}

TEST(Layout, NoticesSwappedAndShiftedPieces) {
  LaidOut laid_out(make_case({Kind::kFixed, 1024}, 8192, 0, 0), 0);
  std::swap(laid_out.queues[0].mem[1][2].src_off, laid_out.queues[0].mem[1][3].src_off);
  laid_out.unpack();
  EXPECT_GT(count_wrong_bytes(laid_out.run, laid_out.buffers), 2000U);
  LaidOut shifted(make_case({Kind::kFixed, 1024}, 8192, 0, 0), 0);
  --shifted.queues[1].mem[0][0].dst_off;  // one byte before the buffer
  EXPECT_THROW(shifted.unpack(), ToolError);
}

TEST(Expectation, IsTheToolsPatternBetweenGuards) {
  UnpackRun run;
  run.slice_bytes = 100;
  run.destination_offset_bytes = 3;
  std::vector<std::byte> message(run.slice_bytes);
  fill_pattern(message, 9);
  for (uint64_t offset = 0; offset < 448; offset += 8) {
    const uint64_t word = compute_expected_word(run, 9, offset);
    for (uint64_t byte = 0; byte < 8; ++byte) {
      const uint64_t at = offset + byte;
      const std::byte expected =
          at >= 259 && at < 359 ? message[at - 259] : static_cast<std::byte>(kGuardWord & 0xff);
      EXPECT_EQ(static_cast<std::byte>(word >> 8 * byte), expected) << at;
    }
  }
}

}  // namespace
}  // namespace verbena::tools::unpack
