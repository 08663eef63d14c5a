// Where bytes of a message in rows lie: near, and beyond 4 GiB. Nothing is read there.
#include "verbena/device/message_bytes.cuh"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>

namespace verbena::device_test {
namespace {

using device::Rows;

constexpr uint64_t kGi = uint64_t{1} << 30;

// Addresses without memory behind them.
class Reserved {
 public:
  explicit Reserved(uint64_t bytes)
      : bytes_(bytes),
        begin_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Reserved() { munmap(begin_, bytes_); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  bool is_there() const { return begin_ != MAP_FAILED; }
  char* begin() const { return static_cast<char*>(begin_); }

 private:
  uint64_t bytes_;
  void* begin_;
};

// Byte `offset` of a message lies in row offset / row_bytes.
uint64_t expect_offset(uint64_t offset, uint64_t row_bytes, uint64_t stride_bytes) {
  return offset / row_bytes * stride_bytes + offset % row_bytes;
}

TEST(Rows, BytesBeyondFourGibibytes) {
  const Reserved memory(64 * kGi);
  if (!memory.is_there()) GTEST_SKIP() << "no 64 GiB of addresses";
  for (const uint64_t row_bytes : {uint64_t{48}, uint64_t{4096}, 3 * kGi, 5 * kGi}) {
    const uint64_t stride_bytes = 2 * row_bytes;
    const Rows rows{memory.begin(), row_bytes, stride_bytes};
    for (const uint64_t offset : {uint64_t{0}, row_bytes - 1, row_bytes, 4 * kGi - 1, 4 * kGi, 4 * kGi + 1,
                                  4 * kGi + row_bytes, 11 * kGi + 7}) {
      EXPECT_EQ(static_cast<uint64_t>(rows.find(offset) - memory.begin()),
                expect_offset(offset, row_bytes, stride_bytes))
          << "byte " << offset << " in rows of " << row_bytes;
      EXPECT_EQ(static_cast<uint64_t>(rows.from(5 * kGi + 3).find(offset) - memory.begin()),
                expect_offset(5 * kGi + 3 + offset, row_bytes, stride_bytes))
          << "byte " << offset << " behind 5 GiB in rows of " << row_bytes;
    }
  }
}

}  // namespace
}  // namespace verbena::device_test
