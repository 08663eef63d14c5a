// Memory of a host that processes share. tests/symm has the rest, with a GPU's.
#include "base/virtual_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace verbena::base {
namespace {

constexpr uint64_t kBytes = 1 << 20;

TEST(MemoryPieceTest, NobodyCutsWhatIsShared) {
  const auto piece = MemoryPiece::allocate({}, kBytes);
  ASSERT_TRUE(piece);
  const auto shared = piece->share();
  ASSERT_TRUE(shared);
  EXPECT_EQ(ftruncate(shared->get(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(shared->get(), 2 * kBytes), -1);
  EXPECT_TRUE(MemoryPiece::open({}, shared->get(), kBytes));
}

TEST(MemoryPieceTest, APieceThatItsOwnerCanCutIsRefused) {
  const FileDescriptor file(memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_TRUE(file);
  ASSERT_EQ(ftruncate(file.get(), kBytes), 0);
  EXPECT_EQ(MemoryPiece::open({}, file.get(), kBytes).error().status, Status::kRemote);
}

}  // namespace
}  // namespace verbena::base
