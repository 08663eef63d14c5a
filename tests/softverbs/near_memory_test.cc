// Memory of softverbs' own: what lands there takes no call of the kernel.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "datagrams.h"

extern "C" {
void* softverbs_take_memory(size_t bytes);
void softverbs_give_back_memory(void* memory);
}

namespace {
std::atomic<int> kernel_copies{0};

// In memory that processes share: one that copies says when it begins, takes its time, and says when it has
// ended.
enum class Copying : uint32_t { kNot, kBegun, kEnded };
std::atomic<Copying>* slow_copy = nullptr;

thread_local int yields = 0;  // of a thread that waits for a sender

template <typename Copy>
ssize_t copy_slowly(const Copy& copy) {
  slow_copy->store(Copying::kBegun);
  usleep(50'000);
  const ssize_t copied = copy();
  slow_copy->store(Copying::kEnded);
  return copied;
}
}  // namespace

// In libc's place: it counts.
extern "C" __attribute__((visibility("default"))) int sched_yield() {
  ++yields;
  return static_cast<int>(syscall(SYS_sched_yield));
}

// The same, as slow as a test wants.
extern "C" __attribute__((visibility("default"))) ssize_t process_vm_writev(pid_t pid, const iovec* local,
                                                                            unsigned long local_count,
                                                                            const iovec* remote,
                                                                            unsigned long remote_count,
                                                                            unsigned long flags) {
  ++kernel_copies;
  const auto copy = [&] {
    return syscall(SYS_process_vm_writev, pid, local, local_count, remote, remote_count, flags);
  };
  return slow_copy == nullptr ? copy() : copy_slowly(copy);
}

namespace verbena::softverbs_test {
namespace {

TEST(NearMemoryTest, IsZeroedAndFreeAgain) {
  Node node;
  constexpr size_t kBytes = 100'000;
  auto* const first = static_cast<uint8_t*>(softverbs_take_memory(kBytes));
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(std::all_of(first, first + kBytes, [](uint8_t byte) { return byte == 0; }));
  std::fill_n(first, kBytes, uint8_t{7});
  auto* const second = static_cast<uint8_t*>(softverbs_take_memory(kBytes));
  EXPECT_TRUE(second >= first + kBytes || second + kBytes <= first);
  softverbs_give_back_memory(first);
  auto* const again = static_cast<uint8_t*>(softverbs_take_memory(kBytes));
  EXPECT_EQ(again, first);
  EXPECT_TRUE(std::all_of(again, again + kBytes, [](uint8_t byte) { return byte == 0; }));
  softverbs_give_back_memory(again);
  softverbs_give_back_memory(second);
  EXPECT_EQ(softverbs_take_memory(size_t{2} << 30), nullptr) << "more than a segment has";
  EXPECT_EQ(softverbs_take_memory(0), nullptr);
}

// Lines and pages of a process in softverbs' memory, or in its own.
class Landing {
 public:
  Landing(Node& node, size_t bytes, bool is_near) : is_near_(is_near), own_(is_near ? 0 : bytes) {
    memory = is_near ? static_cast<uint8_t*>(softverbs_take_memory(bytes)) : own_.data();
    mr = ibv_reg_mr(node.pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
    EXPECT_NE(mr, nullptr);
  }
  ~Landing() {
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    if (is_near_) softverbs_give_back_memory(memory);
  }
  ibv_sge piece(uint64_t offset, uint32_t bytes) const {
    return {reinterpret_cast<uint64_t>(memory) + offset, bytes, mr->lkey};
  }

  uint8_t* memory = nullptr;
  ibv_mr* mr = nullptr;

 private:
  const bool is_near_;
  std::vector<uint8_t> own_;
};

TEST(NearMemoryTest, DatagramsLandThereWithoutTheKernel) {
  constexpr uint32_t kPackets = 40;
  constexpr size_t kPageBytesOfAll = kPackets * kPageBytes;
  Child child([](int socket) {
    for (const bool is_near : {true, false}) {
      Node node;
      DatagramEnd end(node);
      Landing lines(node, kPackets * kLineBytes, is_near), pages(node, kPageBytesOfAll, is_near);
      for (uint32_t i = 0; i < kPackets; ++i) end.post_receive(i, lines, pages);
      tell(socket, DatagramAddress{end.address(), end.qp->qp_num});
      for (const ibv_wc& wc : node.wait_completions(kPackets)) {
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
        const uint8_t* const line = lines.memory + wc.wr_id * kLineBytes + kGrhBytes;
        const uint8_t* const page = pages.memory + wc.wr_id * kPageBytes;
        EXPECT_TRUE(
            std::all_of(line, line + kHeaderBytes, [&](uint8_t byte) { return byte == wc.imm_data; }));
        for (uint32_t i = 0; i < kDataBytes; ++i)
          ASSERT_EQ(page[i], static_cast<uint8_t>(wc.imm_data + i)) << "packet " << wc.imm_data;
      }
      tell(socket, true);
    }
  });
  Node node;
  DatagramEnd end(node);
  Buffer headers(node, kPackets * kHeaderBytes), data(node, kDataBytes + kPackets);
  for (uint32_t i = 0; i < headers.size(); ++i) headers.data()[i] = static_cast<uint8_t>(i / kHeaderBytes);
  for (uint32_t i = 0; i < data.size(); ++i) data.data()[i] = static_cast<uint8_t>(i);
  for (const bool is_near : {true, false}) {
    const auto there = hear<DatagramAddress>(child.socket());
    ibv_ah* const handle = end.make_handle(there.gid, 0);
    std::vector<DatagramEnd::Packet> packets;
    for (uint32_t i = 0; i < kPackets; ++i)
      packets.push_back({i, headers.piece(i * kHeaderBytes, kHeaderBytes), data.piece(i, kDataBytes), handle,
                         there.number});
    kernel_copies = 0;
    ASSERT_EQ(end.post(packets), 0);
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    EXPECT_TRUE(hear<bool>(child.socket()));
    if (is_near) {
      EXPECT_EQ(kernel_copies, 0);
    } else {
      EXPECT_GT(kernel_copies, 0);
    }
    ibv_destroy_ah(handle);
  }
}

// Of one datagram, whose sender, in a child process, is still copying when its target closes.
class LateCopyTest : public testing::Test {
 protected:
  ~LateCopyTest() override { munmap(copying_, sizeof(*copying_)); }

  void await_copy(DatagramEnd& end, const Landing& pages) {
    end.post_receive(0, lines_, pages);
    tell(sender_.socket(), DatagramAddress{end.address(), end.qp->qp_num});
    while (copying_->load() == Copying::kNot) usleep(100);
  }

  std::atomic<Copying>* const copying_ = new (
      mmap(nullptr, sizeof(std::atomic<Copying>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<Copying>;
  Child sender_{[copying = copying_](int socket) { send_slowly(socket, copying); }};
  Node node_;  // a process has its own
  const Landing lines_{node_, kLineBytes, true};

 private:
  static void send_slowly(int socket, std::atomic<Copying>* copying) {
    Node node;
    DatagramEnd end(node);
    Buffer header(node, kHeaderBytes), data(node, kDataBytes);
    const auto there = hear<DatagramAddress>(socket);
    ibv_ah* const handle = end.make_handle(there.gid, 0);
    slow_copy = copying;
    EXPECT_EQ(end.post({{0, header.piece(0, kHeaderBytes), data.piece(0, kDataBytes), handle, there.number}}),
              0);
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    slow_copy = nullptr;
    ibv_destroy_ah(handle);
  }
};

TEST_F(LateCopyTest, AQueuePairIsNotGoneBeforeIt) {
  const Landing pages(node_, kPageBytes, false);
  {
    DatagramEnd end(node_);
    await_copy(end, pages);
  }
  EXPECT_EQ(copying_->load(), Copying::kEnded);
}

TEST_F(LateCopyTest, MemoryIsNotDeregisteredBeforeIt) {
  DatagramEnd end(node_);
  {
    const Landing pages(node_, kPageBytes, false);
    await_copy(end, pages);
  }
  EXPECT_EQ(copying_->load(), Copying::kEnded);
}

// Nobody says that it has ended, and what it took is not waited for again and again.
TEST_F(LateCopyTest, AKilledSenderIsNotAwaitedForLong) {
  DatagramEnd end(node_);
  {
    const Landing pages(node_, kPageBytes, false);
    await_copy(end, pages);
    sender_.kill();
  }
  EXPECT_NE(yields, 0);
  yields = 0;
  for (int i = 0; i < 100; ++i) {
    const Landing later(node_, kPageBytes, false);
  }
  EXPECT_EQ(yields, 0) << "in 100 deregistrations";
}

}  // namespace
}  // namespace verbena::softverbs_test
