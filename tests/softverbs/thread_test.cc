#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "fixture.h"

// All calls from several threads at once; meant for the thread sanitizer as much as for its own checks.
namespace verbena::softverbs_test {
namespace {

constexpr int kThreads = 4;
constexpr uint64_t kMessages = 1500;

TEST(ThreadTest, ParallelQueuePairsIntoOneSharedQueue) {
  constexpr uint64_t kPages = 64, kPageBytes = 512;
  Node receiver({.cq_entries = 8192});
  Buffer pages(receiver, kPages * kPageBytes);
  ibv_srq_init_attr init{};
  init.attr = {kPages, 1, 0};
  ibv_srq* srq = ibv_create_srq(receiver.pd, &init);
  for (uint64_t i = 0; i < kPages; ++i) ASSERT_EQ(post_shared(srq, i, pages, i * kPageBytes, kPageBytes), 0);
  std::atomic<uint64_t> received{0}, wrong{0};
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<QueuePair>> pairs;
  QpOptions options;
  options.srq = srq;
  for (int i = 0; i < kThreads; ++i) pairs.push_back(std::make_unique<QueuePair>(receiver, options));
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Node node;
      Buffer source(node, kPageBytes);
      memset(source.data(), i + 1, kPageBytes);
      QueuePair pair(node);
      QueuePair& peer = *pairs[static_cast<size_t>(i)];
      pair.connect(peer.address());
      peer.connect(pair.address());
      for (uint64_t n = 0; n < kMessages; ++n) {
        ASSERT_EQ(Send(IBV_WR_SEND_WITH_IMM, n)
                      .from(source, 0, kPageBytes)
                      .with_immediate(static_cast<uint32_t>(i + 1))
                      .run(pair),
                  IBV_WC_SUCCESS);
      }
    });
  }
  // Two threads poll one queue and post the pages again.
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (received < kThreads * kMessages) {
        ibv_wc wc[4];
        const int polled = ibv_poll_cq(receiver.cq, 4, wc);
        for (int k = 0; k < polled; ++k) {
          const uint8_t* page = pages.data() + wc[k].wr_id * kPageBytes;
          wrong += page[0] != wc[k].imm_data || page[kPageBytes - 1] != wc[k].imm_data ? 1u : 0u;
          EXPECT_EQ(post_shared(srq, wc[k].wr_id, pages, wc[k].wr_id * kPageBytes, kPageBytes), 0);
          ++received;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received, kThreads * kMessages);
  EXPECT_EQ(wrong, 0u);
  pairs.clear();
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST(ThreadTest, RegistrationsComeAndGoBesideTransfers) {
  Node node;
  Buffer source(node, 1 << 20), target(node, 1 << 20);
  QueuePair pair(node);
  pair.connect(pair.address());
  std::atomic<bool> stop{false};
  std::thread registrar([&] {
    Node other;
    while (!stop) Buffer(other, 4096);
  });
  std::thread creator([&] {
    Node other;
    while (!stop) {
      QueuePair fresh(other);
      fresh.connect(fresh.address());
      Buffer small(other, 64);
      ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(small, 0, 8).to(small.remote(8)).run(fresh), IBV_WC_SUCCESS);
    }
  });
  for (int i = 0; i < 200; ++i) {
    const size_t bytes = i % 4 == 0 ? 1 << 20 : 4096;  // some by the worker
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(source, 0, bytes).to(target.remote()).run(pair),
              IBV_WC_SUCCESS);
  }
  stop = true;
  registrar.join();
  creator.join();
}

// Each request goes out alone: no later one takes along what a thread busy with the same stream kept it from.
// Such threads: one whose queue pair has failed, so that each of its posts is flushed, and one that ends
// registrations.
TEST(ThreadTest, EachPostGoesOutBesideFlushes) {
  Node node;
  Buffer source(node, 8), target(node, 8);
  QueuePair pair(node);
  pair.connect(pair.address());
  const auto make_write = [&](uint64_t number) {
    return Send(IBV_WR_RDMA_WRITE, number).from(source, 0, 8).to(target.remote());
  };
  std::atomic<bool> stop{false};
  std::thread flusher([&] {
    Node other;
    QueuePair failed(other);
    failed.connect(failed.address());
    Buffer memory(other, 16);
    const auto post = [&] {
      ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 0).from(memory, 0, 8).to(memory.remote(8)).post(failed), 0);
    };
    post();
    EXPECT_EQ(other.wait_completion().status, IBV_WC_SUCCESS);
    ASSERT_EQ(failed.to_state(IBV_QPS_ERR), 0);
    while (!stop && !HasFailure()) {
      post();
      EXPECT_EQ(other.wait_completion().status, IBV_WC_WR_FLUSH_ERR);
    }
  });
  std::thread registrar([&] {
    Node other;
    while (!stop) Buffer(other, 4096);
  });
  // Where processors are fewer than threads, one may take a time slice and more.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  for (uint64_t n = 0; n < 10'000 && std::chrono::steady_clock::now() < end && !HasFailure(); ++n) {
    EXPECT_EQ(make_write(n).post(pair), 0);
    EXPECT_EQ(node.wait_completion().wr_id, n);
  }
  stop = true;
  flusher.join();
  registrar.join();
}

// The owner takes its memory away while a peer writes to it: the peer fails, and after the call nothing lands
// any more.
TEST(ThreadTest, DeregistrationWaitsForTheWriter) {
  for (int round = 0; round < 20; ++round) {
    Node left_node, right_node;
    Buffer source(left_node, 256 << 10), target(right_node, 256 << 10);
    QueuePair left(left_node, {.send_requests = 512}), right(right_node);
    left.connect(right.address());
    right.connect(left.address());
    const RemoteMemory far{target.address(), target.mr()->rkey};
    std::atomic<bool> is_writing{false};
    std::thread writer([&] {
      for (uint64_t n = 0;; ++n) {
        memset(source.data(), static_cast<int>(n % 251) + 1, source.size());
        Send send(IBV_WR_RDMA_WRITE, n);
        if (send.from(source, 0, source.size()).to(far).post(left) != 0) break;
        is_writing = true;
        if (left_node.wait_completion().status != IBV_WC_SUCCESS) break;
      }
    });
    while (!is_writing) std::this_thread::yield();
    target.drop_mr();
    memset(target.data(), 0, target.size());
    writer.join();
    EXPECT_EQ(target.data()[0], 0);
    EXPECT_EQ(target.data()[target.size() - 1], 0);
  }
}

TEST(ThreadTest, PostsToOneQueuePair) {
  Node node({.cq_entries = 8192});
  Buffer source(node, 4096), target(node, 4096);
  QueuePair pair(node, {.send_requests = 4096});
  pair.connect(pair.address());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (uint64_t n = 0; n < 500; ++n) {
        ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, n).from(source, 0, 64).to(target.remote()).post(pair), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  node.wait_completions(kThreads * 500);
}

TEST(ThreadTest, QueuePairsDieWhileTheyAreUsed) {
  for (int round = 0; round < 30; ++round) {
    Node left_node, right_node;
    Buffer source(left_node, 4096), target(right_node, 4096);
    QueuePair left(left_node, {.send_requests = 4096});
    auto right = std::make_unique<QueuePair>(right_node);
    left.connect(right->address());
    right->connect(left.address());
    std::thread sender([&] {
      for (uint64_t n = 0; n < 4000; ++n) {
        Send send(IBV_WR_RDMA_WRITE, n);
        if (send.from(source, 0, 4096).to(target.remote()).post(left) != 0) return;
        if (left_node.wait_completion().status != IBV_WC_SUCCESS) return;
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    right.reset();
    sender.join();
  }
}

}  // namespace
}  // namespace verbena::softverbs_test
