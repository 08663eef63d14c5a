// One rank's process, for the session of any backend. Runs the checks, then the measurements, section by
// section, in step with the other ranks.
#pragma once

#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "verbena-bench/symm/kernels.cuh"
#include "verbena-bench/symm/primitives.cuh"
#include "verbena-bench/symm/symm_plan.h"
#include "verbena/verbena.hpp"

// Throws if a call of CUDA's runtime fails.
#define CHECK(call) ::verbena::tools::symm::check_cuda(call, #call)

namespace verbena::tools::symm {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

inline constexpr int kControl = 3;  // common/child_group.h, which nvcc does not read
inline constexpr int kThreads = 512;
inline constexpr uint64_t kBulkBytes = uint64_t{256} << 20;
inline constexpr uint64_t kSlowBulkBytes = uint64_t{16} << 20;  // by RDMA
inline constexpr uint64_t kSlotsBytes = uint64_t{32} << 20;
inline constexpr uint32_t kWorkspaceBlocks = 128;
inline constexpr uint64_t kMaxPacketBytes = uint64_t{256} << 10;  // of an all-reduce by packets

// A Session has the backend's type `Context`, is constructed from a plan, and returns from context() a
// SymmetricContext with room for kHeapBytes of windows.
template <typename Session>
class Rank {
 public:
  explicit Rank(const SymmPlan& plan)
      : plan_(plan),
        session_(plan),
        context_(session_.context()),
        world_(context_.world()),
        bulk_bytes_(is_remote() ? kSlowBulkBytes : kBulkBytes),
        from_(context_.allocate(kBulkBytes)),
        to_(context_.allocate(kBulkBytes)),
        workspace_(is_remote() ? nullptr
                               : std::make_unique<SymmetricWorkspace>(
                                     context_.create_workspace(world_, kSlotsBytes, kWorkspaceBlocks))) {
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
    CHECK(cudaMalloc(&wrong_, kPrimitives * sizeof(uint32_t)));
    CHECK(cudaMemset(wrong_, 0, kPrimitives * sizeof(uint32_t)));
  }

  void check_all() {
    check_each();
    check_rounds();
    check_puts();
    if (is_remote()) return;
    check_sums();
    check_messages();
    check_conversions();
  }
  void measure_all() {
    measure_barrier();
    measure_bounce();
    measure_put();
    if (is_remote()) {
      measure_rate();
    } else {
      measure_sums();
      measure_packets();
    }
  }

 private:
  bool is_remote() const { return world_.context().has_remote != 0; }
  // The backend's context, which extends the common one.
  const typename Session::Context& kernel() const {
    return static_cast<const typename Session::Context&>(world_.context());
  }
  int rank() const { return static_cast<int>(plan_.rank); }

  // Starts in step with the others; returns microseconds on this GPU.
  double time_us(const std::function<void()>& launch) {
    CHECK(cudaStreamSynchronize(stream_));
    context_.barrier();
    CHECK(cudaEventRecord(begin_, stream_));
    launch();
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(end_, stream_));
    CHECK(cudaStreamSynchronize(stream_));
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1000.0 * static_cast<double>(milliseconds);
  }
  void tell(const std::string& name, const std::vector<double>& samples) {
    std::string line = "figure " + name;
    for (const double sample : samples) line += " " + std::to_string(sample);
    dprintf(kControl, "%s\n", line.c_str());
  }
  // Measures launches of `units` each, after one launch that is not measured.
  void measure(const std::string& name, double units, const std::function<void()>& launch) {
    std::vector<double> samples;
    for (unsigned i = 0; i <= plan_.rounds; ++i) {
      const double us = time_us(launch);
      if (i > 0) samples.push_back(us / units);
    }
    tell(name, samples);
    expect_right(name);
  }
  void expect_right(const std::string& what) {
    uint32_t wrong = 0;
    CHECK(cudaMemcpyAsync(&wrong, wrong_, sizeof(wrong), cudaMemcpyDefault, stream_));
    CHECK(cudaMemsetAsync(wrong_, 0, sizeof(wrong), stream_));
    CHECK(cudaStreamSynchronize(stream_));
    tell_checked(wrong, what);
    context_.check_error();
  }
  static void tell_checked(uint32_t wrong, const std::string& what) {
    dprintf(kControl, "checked %u %s\n", wrong, what.c_str());
  }

  void check_each();
  void check_rounds();
  void check_puts();
  void check_sums();
  void check_messages();
  void check_conversions();
  void measure_barrier();
  void measure_bounce();
  void measure_put();
  void measure_rate();
  void measure_sums();
  void measure_packets();
  const SymmWorkspace<typename Session::Context>& workspace() const {
    return workspace_->template workspace<typename Session::Context>();
  }
  // Calls with the number of ranks as a constant where kernels have it, or 0.
  template <typename Call>
  void with_ranks(const Call& call) {
    switch (plan_.count_ranks) {
      case 2:
        return call(std::integral_constant<int, 2>{});
      case 4:
        return call(std::integral_constant<int, 4>{});
      case 8:
        return call(std::integral_constant<int, 8>{});
      default:
        return call(std::integral_constant<int, 0>{});
    }
  }
  void launch_packets(uint64_t count, int blocks, int threads);
  void launch_reduce(bool is_two_shot, uint64_t count, int blocks, int threads);
  // Measures replays of a graph of `count` all-reduces.
  void measure_graph(const std::string& name, unsigned count, const std::function<void()>& launch);

  const SymmPlan plan_;
  Session session_;
  SymmetricContext& context_;
  SymmetricTeam world_;
  uint64_t bulk_bytes_;
  SymmetricWindow from_, to_;
  std::unique_ptr<SymmetricWorkspace> workspace_;  // null: its messages do not reach all ranks
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  uint32_t* wrong_ = nullptr;
  int64_t turns_ = 0;    // of the signal of bounce()
  int64_t arrived_ = 0;  // of the signal of put_to_next()
  uint64_t rounds_ = 1;  // of tell_rounds()
};

template <typename Session>
void Rank<Session>::check_each() {
  using Context = typename Session::Context;
  const auto check = [&](auto* kernel_of) {
    time_us([&] {
      kernel_of<<<1, kPrimitiveThreads, 0, stream_>>>(kernel(), to_.address<uint8_t>(),
                                                      from_.address<uint8_t>(), wrong_);
    });
  };
  check(&check_primitives<ThreadGroup, Context>);
  check(&check_primitives<WarpGroup, Context>);
  check(&check_primitives<BlockGroup, Context>);
  std::vector<uint32_t> wrong(kPrimitives);
  const size_t length_bytes = wrong.size() * sizeof(uint32_t);
  CHECK(cudaMemcpyAsync(wrong.data(), wrong_, length_bytes, cudaMemcpyDefault, stream_));
  CHECK(cudaMemsetAsync(wrong_, 0, length_bytes, stream_));
  CHECK(cudaStreamSynchronize(stream_));
  for (uint32_t i = 0; i < kPrimitives; ++i)
    tell_checked(wrong[i], std::string(kPrimitiveNames[i]) + ": by a thread, a warp, a block");
  context_.check_error();
}

template <typename Session>
void Rank<Session>::check_rounds() {
  const uint32_t rounds = is_remote() ? 20 : 500;
  for (const int threads : {32, 512}) {
    time_us([&] {
      tell_rounds<<<16, threads, 0, stream_>>>(kernel(), to_.address<uint64_t>(), from_.address<uint64_t>(),
                                               rounds_, rounds, wrong_);
    });
    rounds_ += rounds;
  }
  expect_right("barriers of 16 blocks, all data visible");
  const uint32_t turns = is_remote() ? 50 : 1000;
  time_us([&] {
    bounce<<<1, 1, 0, stream_>>>(kernel(), to_.address<uint64_t>(), from_.address<uint64_t>(), turns, turns_,
                                 wrong_);
  });
  turns_ += turns;
  expect_right("put, signal and wait between two ranks");
}

template <typename Session>
void Rank<Session>::check_puts() {
  constexpr int kBlocks = 16;
  constexpr char kBehind = 0x5a;
  const int before = (rank() + static_cast<int>(plan_.count_ranks) - 1) % static_cast<int>(plan_.count_ranks);
  for (const uint64_t length_bytes : {uint64_t{1}, uint64_t{4097}, bulk_bytes_ - 3}) {
    fill<<<64, 256, 0, stream_>>>(from_.address<float>(), bulk_bytes_ / 4, rank());
    CHECK(cudaMemsetAsync(to_.address<char>() + length_bytes, kBehind, 1, stream_));
    arrived_ += kBlocks;
    time_us([&] {
      put_to_next<<<kBlocks, kThreads, 0, stream_>>>(kernel(), to_.address<char>(), from_.address<char>(),
                                                     length_bytes, 2, wrong_);
      wait_for<<<1, 1, 0, stream_>>>(kernel(), 2, arrived_, wrong_);
      check_bytes<<<64, 256, 0, stream_>>>(to_.address<char>(), length_bytes, before, kBehind, wrong_);
    });
    context_.barrier();
  }
  expect_right("puts of 1 byte to " + std::to_string(bulk_bytes_ >> 20) + " MiB, not a byte more");
}

template <typename Session>
void Rank<Session>::launch_reduce(bool is_two_shot, uint64_t count, int blocks, int threads) {
  using Context = typename Session::Context;
  with_ranks([&](auto ranks) {
    constexpr int kRanks = decltype(ranks)::value;
    auto* const kernel_of =
        is_two_shot ? &all_reduce<true, kRanks, Context> : &all_reduce<false, kRanks, Context>;
    kernel_of<<<blocks, threads, 0, stream_>>>(kernel(), to_.address<float>(), from_.address<float>(), count,
                                               wrong_);
  });
}

template <typename Session>
void Rank<Session>::launch_packets(uint64_t count, int blocks, int threads) {
  using Context = typename Session::Context;
  with_ranks([&](auto ranks) {
    all_reduce_by_packets<decltype(ranks)::value, Context><<<blocks, threads, 0, stream_>>>(
        workspace(), to_.address<float>(), from_.address<float>(), count, wrong_);
  });
}

// Messages whose words contain the number of their call; then sums that continue from launch to launch.
template <typename Session>
void Rank<Session>::check_messages() {
  for (const int threads : {32, kThreads}) {
    time_us([&] {
      tell_calls<<<32, threads, 0, stream_>>>(workspace(), to_.address<uint32_t>(), from_.address<uint32_t>(),
                                              2000, wrong_);
    });
  }
  for (const uint64_t count : {uint64_t{1}, uint64_t{255}, uint64_t{4096}, kMaxPacketBytes / 4}) {
    const int blocks = count < 4096 ? 1 : 128;
    fill<<<64, 256, 0, stream_>>>(from_.address<float>(), count, rank());
    for (int launches = 0; launches < 3; ++launches)
      time_us([&] { launch_packets(count, blocks, kThreads); });
    check_sum<<<64, 256, 0, stream_>>>(to_.address<float>(), count, static_cast<int>(plan_.count_ranks),
                                       wrong_);
    CHECK(cudaStreamSynchronize(stream_));
    context_.barrier();
  }
  expect_right("messages and sums by packets");
}

template <typename Session>
void Rank<Session>::check_conversions() {
  time_us([&] { compare_all_conversions<<<512, 256, 0, stream_>>>(wrong_); });
  expect_right("conversions of half, bfloat16, e4m3, e5m2: every number, every float");
}

template <typename Session>
void Rank<Session>::check_sums() {
  for (const bool is_two_shot : {false, true}) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{255}, uint64_t{4096}, (uint64_t{1} << 22) + 3}) {
      fill<<<64, 256, 0, stream_>>>(from_.address<float>(), count, rank());
      time_us([&] {
        launch_reduce(is_two_shot, count, count < 4096 ? 1 : 24, kThreads);
        check_sum<<<64, 256, 0, stream_>>>((is_two_shot ? from_ : to_).address<float>(), count,
                                           static_cast<int>(plan_.count_ranks), wrong_);
      });
      context_.barrier();
    }
  }
  expect_right("sums in one shot and two, 1 to 4194307 elements");
}

template <typename Session>
void Rank<Session>::measure_barrier() {
  const uint32_t count = is_remote() ? 200 : 2000;
  for (const int threads : {32, 512}) {
    measure("barrier/" + std::to_string(threads), count,
            [&] { meet<<<1, threads, 0, stream_>>>(kernel(), count, wrong_); });
  }
}

template <typename Session>
void Rank<Session>::measure_bounce() {
  const uint32_t turns = is_remote() ? 200 : 2000;
  measure("bounce", 2.0 * turns, [&] {
    bounce<<<1, 1, 0, stream_>>>(kernel(), to_.address<uint64_t>(), from_.address<uint64_t>(), turns, turns_,
                                 wrong_);
    turns_ += turns;
  });
}

template <typename Session>
void Rank<Session>::measure_put() {
  for (const int blocks : {16, 32, 64, 132, 264}) {
    // The figure is the time per 1000 bytes, the inverse of GB/s.
    measure("put/" + std::to_string(blocks), static_cast<double>(bulk_bytes_) / 1000, [&] {
      arrived_ += blocks;
      put_to_next<<<blocks, kThreads, 0, stream_>>>(kernel(), to_.address<char>(), from_.address<char>(),
                                                    bulk_bytes_, 2, wrong_);
      wait_for<<<1, 1, 0, stream_>>>(kernel(), 2, arrived_, wrong_);
    });
  }
}

template <typename Session>
void Rank<Session>::measure_rate() {
  const uint32_t count = 20000;
  for (const int blocks : {1, 4}) {
    measure("rate/" + std::to_string(blocks), static_cast<double>(count) * blocks, [&] {
      put_many<<<blocks, 1, 0, stream_>>>(kernel(), to_.address<uint64_t>(), from_.address<uint64_t>(), count,
                                          wrong_);
    });
  }
}

template <typename Session>
void Rank<Session>::measure_graph(const std::string& name, unsigned count,
                                  const std::function<void()>& launch) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  for (unsigned i = 0; i < count; ++i) launch();
  CHECK(cudaStreamEndCapture(stream_, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphDestroy(graph));
  measure(name, count, [&] { CHECK(cudaGraphLaunch(executable, stream_)); });
  CHECK(cudaGraphExecDestroy(executable));
}

// The numbers of blocks and threads to try for this many bytes.
inline std::vector<std::pair<int, int>> list_shapes(uint64_t bytes) {
  std::vector<std::pair<int, int>> shapes;
  for (const int threads : {64, 128, 256, kThreads}) {
    for (const int blocks : {1, 2, 4, 8, 16, 32, 64, 96, 128}) {
      const uint64_t all = static_cast<uint64_t>(blocks) * static_cast<uint64_t>(threads);
      const bool is_too_many = blocks > 1 && all * 4 > bytes;
      const bool is_too_few = all * 16 * 64 < bytes;
      if (!is_too_many && !is_too_few && (threads == kThreads || bytes <= 65536))
        shapes.emplace_back(blocks, threads);
    }
  }
  return shapes;
}

template <typename Session>
void Rank<Session>::measure_sums() {
  for (uint64_t bytes = 1024; bytes <= uint64_t{16} << 20; bytes *= 4) {
    for (const bool is_two_shot : {false, true}) {
      for (const auto& [blocks, threads] : list_shapes(bytes)) {
        const std::string name = std::string(is_two_shot ? "two" : "one") + "/" + std::to_string(bytes) +
                                 "/" + std::to_string(blocks) + "x" + std::to_string(threads);
        measure_graph(name, 50, [&, blocks = blocks, threads = threads] {
          launch_reduce(is_two_shot, bytes / 4, blocks, threads);
        });
      }
    }
  }
}

template <typename Session>
void Rank<Session>::measure_packets() {
  for (uint64_t bytes = 1024; bytes <= kMaxPacketBytes; bytes *= 4) {
    for (const auto& [blocks, threads] : list_shapes(bytes)) {
      // A slot holds half of its length in data.
      if (bytes / static_cast<uint64_t>(blocks) + 16 > workspace_->slot_bytes() / 2) continue;
      const std::string name =
          "packets/" + std::to_string(bytes) + "/" + std::to_string(blocks) + "x" + std::to_string(threads);
      measure_graph(name, 50,
                    [&, blocks = blocks, threads = threads] { launch_packets(bytes / 4, blocks, threads); });
    }
  }
}

template <typename Session>
void run_session(const SymmPlan& plan) {
  CHECK(cudaSetDevice(plan.gpu));
  CHECK(cudaFree(nullptr));  // makes the GPU's context current
  Rank<Session> rank(plan);
  rank.check_all();
  if (plan.rounds != 0) rank.measure_all();
}

}  // namespace verbena::tools::symm
