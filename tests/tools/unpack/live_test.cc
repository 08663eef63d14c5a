#include "verbena-bench/unpack/live.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "common/cpu_unpack.h"
#include "common/error.h"
#include "verbena-bench/unpack/layout.h"

namespace verbena::tools::unpack {
namespace {

// Host memory and the CPU reference in the GPU's place.
class CpuReceiver final : public LiveReceiver {
 public:
  int pointer_type() const override { return abi::kPtrHost; }
  char* allocate(size_t length_bytes) override {
    return reinterpret_cast<char*>(memory_.emplace_back(length_bytes).data());
  }
  void reset(const UnpackRun& run) override { fill_buffers(get_buffers(run)); }
  uint64_t place(UnpackDeviceHandle* handle, char* data, uint64_t length_bytes) override {
    const unsigned slot = compute_slot(handle->head++, 0);
    const auto placed = unpack_slot(*handle, slot, {reinterpret_cast<std::byte*>(data), length_bytes});
    if (harms && placed.bytes > 0) data[placed.bytes - 1] ^= 1;
    return placed.descriptor_count;
  }
  Finding check(const UnpackRun& run) override { return {count_wrong_bytes(run, get_buffers(run)), "there"}; }

  bool harms = false;

 private:
  static std::span<std::byte> get_buffers(const UnpackRun& run) {
    return {reinterpret_cast<std::byte*>(run.buffers), run.buffer_bytes()};
  }

  std::deque<std::vector<std::byte>> memory_;
};

LiveOptions make_options(uint64_t message_bytes) {
  LiveOptions options;
  options.plugin = SAMPLE_PLUGIN;
  options.message_bytes = message_bytes;
  options.messages = 40;
  options.timeout_s = 10;
  return options;
}

TEST(Live, PlacesWhatAPluginHasStaged) {
  for (const uint64_t message_bytes : {8, 5000, 40000}) {
    CpuReceiver receiver;
    const LiveFigure figure = run_live(make_options(message_bytes), receiver);
    EXPECT_EQ(figure.messages, 40U);
    EXPECT_EQ(figure.staged, 40U);
    EXPECT_GE(figure.descriptors, figure.staged);
    EXPECT_EQ(figure.finding.wrong_bytes, 0U);
  }
}

TEST(Live, LeavesAloneWhatAPluginHasPlacedItself) {
  CpuReceiver receiver;
  const LiveFigure figure = run_live(make_options(3000000), receiver);
  EXPECT_EQ(figure.staged, 0U);
  EXPECT_EQ(figure.finding.wrong_bytes, 0U);
}

TEST(Live, NoticesWrongBytes) {
  CpuReceiver receiver;
  receiver.harms = true;
  const LiveFigure figure = run_live(make_options(5000), receiver);
  EXPECT_EQ(figure.finding.wrong_bytes, 40U);
}

TEST(Live, RefusesAPluginThatIsNotThere) {
  CpuReceiver receiver;
  LiveOptions options = make_options(8);
  options.device = 99;
  EXPECT_THROW(run_live(options, receiver), ToolError);
  options.plugin = "/nonexistent.so";
  EXPECT_THROW(run_live(options, receiver), ToolError);
}

}  // namespace
}  // namespace verbena::tools::unpack
