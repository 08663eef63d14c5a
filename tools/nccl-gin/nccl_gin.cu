// Kernels that use NCCL's device API (put, putValue, signal, wait, counters, flush, barrier; get and signals
// in the user's window from 2.30.7 on), NCCL's put and signal on streams, and gathers that need no SM: over
// the network that NCCL chose, checked by element, with figures. One process for each GPU. README.md says how
// to run it.
#include <cuda.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

#define VERBENA_NCCL_AT_LEAST(major, minor, patch) (NCCL_VERSION_CODE >= NCCL_VERSION(major, minor, patch))

constexpr int kMaxRanks = 8, kContexts = 4, kSignals = 32;
constexpr size_t kPart = size_t{256} << 20;  // of the window: sources, then targets
constexpr size_t kSmallStride = size_t{4} << 20;
constexpr int kLimitS = 60;  // for each step

// The memory that the processes share, besides NCCL's. They inherit it.
struct Shared {
  ncclUniqueId id;
  std::atomic<int> arrived;
  uint64_t rounds[kMaxRanks];  // written by kernels
  std::atomic<int> failed;
};
constexpr size_t kSharedBytes = 4096;  // of a mapping
static_assert(sizeof(Shared) <= kSharedBytes);
Shared* shared;
int rank, ranks, hosts;
std::string step = "start";

[[noreturn]] void die(const std::string& why) {
  std::printf("rank %d: %s: FAILED: %s\n", rank, step.c_str(), why.c_str());
  std::fflush(stdout);
  shared->failed = 1;
  _exit(1);
}
void check(cudaError_t error) {
  if (error != cudaSuccess) die(cudaGetErrorString(error));
}
void check(ncclResult_t result) {
  if (result != ncclSuccess) die(std::string(ncclGetErrorString(result)) + ": " + ncclGetLastError(nullptr));
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void meet() {
  static int times = 0;
  const int due = ++times * ranks;
  shared->arrived.fetch_add(1);
  for (const double end = now_s() + kLimitS; shared->arrived.load() < due; usleep(100)) {
    if (shared->failed.load() != 0) _exit(1);  // it has said why
    if (now_s() > end) die("timed out waiting for the other ranks");
  }
}

// Until the stream has done everything; NCCL's waits have no limit. With pauses: who asks CUDA
// without one holds up the calls of all other threads.
void finish(cudaStream_t stream, ncclComm_t communicator) {
  for (const double end = now_s() + kLimitS;;) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) check(state);
    ncclResult_t error = ncclSuccess;
    check(ncclCommGetAsyncError(communicator, &error));
    if (error != ncclSuccess && error != ncclInProgress)
      die(std::string("asynchronous error: ") + ncclGetErrorString(error));
    if (now_s() > end) die("not finished within " + std::to_string(kLimitS) + " s");
    usleep(10);
  }
}

__host__ __device__ uint32_t pattern(int from, int to, uint32_t round, size_t i) {
  uint32_t value =
      static_cast<uint32_t>(i) * 2654435761U + round * 40503U + static_cast<uint32_t>(from * 131 + to * 7919);
  value ^= value >> 15;
  return value * 2246822519U;
}

// --- Kernels. Thread t of a block serves peer t.

__global__ void fill(uint32_t* words, size_t count, int from, int to, uint32_t round) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x)
    words[i] = pattern(from, to, round, i);
}
__global__ void count_wrong(const uint32_t* words, size_t count, int from, int to, uint32_t round,
                            unsigned long long* wrong) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    if (words[i] != pattern(from, to, round, i)) atomicAdd(wrong, 1ULL);
  }
}

// Everybody puts to everybody, itself too. A signal for each sender.
__global__ void put_to_all(ncclDevComm communicator, ncclWindow_t window, size_t stride, size_t bytes,
                           int context, uint64_t round) {
  const ncclGin gin(communicator, context);
  const ncclTeam world = ncclTeamWorld(communicator);
  const int peer = static_cast<int>(threadIdx.x);
  gin.put(world, peer, window, kPart + world.rank * stride, window, peer * stride, bytes,
          ncclGin_SignalInc{static_cast<ncclGinSignal_t>(world.rank)});
  gin.waitSignal(ncclCoopThread(), static_cast<ncclGinSignal_t>(peer), round);
  gin.flush(ncclCoopThread());
}

#if VERBENA_NCCL_AT_LEAST(2, 29, 0)
// Values of every length, some at odd places; the last comes with a signal.
__global__ void put_values(ncclDevComm communicator, ncclWindow_t window, size_t stride, int context,
                           uint64_t round) {
  const ncclGin gin(communicator, context);
  const ncclTeam world = ncclTeamWorld(communicator);
  const int peer = static_cast<int>(threadIdx.x);
  const size_t at = kPart + world.rank * stride;
  const uint64_t value = 0x0102030405060708ULL * (world.rank + 1);
  gin.putValue(world, peer, window, at + 1, static_cast<uint8_t>(value));
  gin.putValue(world, peer, window, at + 6, static_cast<uint16_t>(value));
  gin.putValue(world, peer, window, at + 12, static_cast<uint32_t>(value));
  gin.putValue(world, peer, window, at + 24, value,
               ncclGin_SignalInc{static_cast<ncclGinSignal_t>(world.rank)});
  gin.waitSignal(ncclCoopThread(), static_cast<ncclGinSignal_t>(peer), round);
}

#endif

// A source is written again as soon as the counter, or a flush, says that its put has read it.
__global__ void reuse_source(ncclDevComm communicator, ncclWindow_t window, size_t stride, int puts,
                             bool uses_counter, int context, uint64_t round) {
  const ncclGin gin(communicator, context);
  const ncclTeam world = ncclTeamWorld(communicator);
  const int peer = (world.rank + 1) % world.nRanks;
  auto* const source = static_cast<uint32_t*>(ncclGetLocalPointer(window, 0));
  const uint64_t before = uses_counter ? gin.readCounter(0) : 0;
  for (int put = 0; put < puts; ++put) {
    for (int i = 0; i < 256; ++i) source[i] = pattern(world.rank, peer, static_cast<uint32_t>(put), i);
    const size_t to = kPart + world.rank * stride + put * 1024;
    if (uses_counter) {
      gin.put(world, peer, window, to, window, 0, 1024, ncclGin_None{}, ncclGin_CounterInc{0},
              ncclCoopThread(), ncclGin_None{}, cuda::thread_scope_thread, cuda::thread_scope_system);
      gin.waitCounter(ncclCoopThread(), 0, before + put + 1);
    } else {
      gin.put(world, peer, window, to, window, 0, 1024, ncclGin_None{}, ncclGin_None{}, ncclCoopThread(),
              ncclGin_None{}, cuda::thread_scope_thread, cuda::thread_scope_system);
      gin.flush(ncclCoopThread());
    }
  }
  gin.signal(world, peer, ncclGin_SignalInc{kSignals - 1});
  gin.waitSignal(ncclCoopThread(), kSignals - 1, round);
}

// Every thread of every block of every rank adds to one signal of every rank.
__global__ void count_signals(ncclDevComm communicator, int signals, ncclGinSignal_t signal, int context) {
  const ncclGin gin(communicator, context);
  const ncclTeam world = ncclTeamWorld(communicator);
  for (int i = 0; i < signals; ++i)
    gin.signal(world, static_cast<int>(threadIdx.x), ncclGin_SignalAdd{signal, static_cast<uint64_t>(i + 1)});
}
__global__ void wait_for_signal(ncclDevComm communicator, ncclGinSignal_t signal, int context, uint64_t least,
                                uint64_t* found) {
  const ncclGin gin(communicator, context);
  gin.waitSignal(ncclCoopThread(), signal, least);
  *found = gin.readSignal(signal);
}

__global__ void meet_by_barriers(ncclDevComm communicator, uint64_t first, int count,
                                 volatile uint64_t* rounds, unsigned long long* wrong) {
  const ncclGin gin(communicator, 0);
  ncclBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), ncclTeamTagWorld(), gin, 0);
  const ncclTeam world = ncclTeamWorld(communicator);
  for (uint64_t round = first; round < first + count; ++round) {
    if (threadIdx.x == 0) rounds[world.rank] = round;
    __threadfence_system();
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
    if (threadIdx.x < world.nRanks && rounds[threadIdx.x] < round) atomicAdd(wrong, 1ULL);
  }
}

#if VERBENA_NCCL_AT_LEAST(2, 30, 7)
__global__ void get_from_all(ncclDevComm communicator, ncclWindow_t window, size_t stride, size_t bytes,
                             int context) {
  const ncclGin gin(communicator, context);
  const ncclTeam world = ncclTeamWorld(communicator);
  const int peer = static_cast<int>(threadIdx.x);
  gin.get(world, peer, window, world.rank * stride, window, kPart + peer * stride, bytes);
  gin.flush(ncclCoopThread());
}
// The signal is a word of the window.
__global__ void signal_in_window(ncclDevComm communicator, ncclWindow_t window, size_t stride, size_t bytes,
                                 size_t word, int context, uint64_t least) {
  const ncclGin gin(communicator, context);
  const ncclTeam world = ncclTeamWorld(communicator);
  const int peer = static_cast<int>(threadIdx.x);
  gin.put(world, peer, window, kPart + world.rank * stride, window, peer * stride, bytes,
          ncclGin_StrongVASignalAdd{window, word + 8 * world.rank, 3});
  gin.waitSignal(ncclCoopThread(), window, word + 8 * peer, least);
  gin.flush(ncclCoopThread());
}
#endif

// --- Figures.

__global__ void ping_pong(ncclDevComm communicator, ncclWindow_t window, int turns, uint64_t first,
                          size_t bytes) {
  const ncclGin gin(communicator, 0);
  const ncclTeam world = ncclTeamWorld(communicator);
  const int peer = 1 - world.rank;
  const ncclGinSignal_t signal = 20;
  for (uint64_t turn = first + 1; turn <= first + turns; ++turn) {
    if (world.rank == 1) gin.waitSignal(ncclCoopThread(), signal, turn);
    gin.put(world, peer, window, kPart, window, 0, bytes, ncclGin_SignalInc{signal});
    if (world.rank == 0) gin.waitSignal(ncclCoopThread(), signal, turn);
  }
}
__global__ void send_many(ncclDevComm communicator, ncclWindow_t window, int puts, size_t bytes,
                          size_t step_bytes, int contexts) {
  const ncclGin gin(communicator, static_cast<int>(blockIdx.x) % contexts);
  const ncclTeam world = ncclTeamWorld(communicator);
  for (int i = 0; i < puts; ++i) {
    const size_t at = (static_cast<size_t>(blockIdx.x) * puts + i) * step_bytes % kPart;
    gin.put(world, 1, window, kPart + at, window, at, bytes, ncclGin_SignalInc{21});
  }
  gin.flush(ncclCoopThread());
}

// --- A rank.

class Rank {
 public:
  Rank() {
    step = "communicator";
    int gpus = 0;
    check(cudaGetDeviceCount(&gpus));
    check(cudaSetDevice(rank % gpus));
    check(cudaFree(nullptr));
    int has_vmm_rdma = 0, has_rdma = 0;
    cuDeviceGetAttribute(&has_vmm_rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                         rank % gpus);
    cuDeviceGetAttribute(&has_rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, rank % gpus);
    if (rank == 0) {
      int version = 0;
      ncclGetVersion(&version);
      std::printf("NCCL %d, compiled for %d; GPUDirect RDMA %d, with VMM memory %d%s\n", version,
                  NCCL_VERSION_CODE, has_rdma, has_vmm_rdma,
                  has_vmm_rdma == 0 ? ": NCCL does not offer its device API here" : "");
      check(ncclGetUniqueId(&shared->id));
    }
    meet();
    check(ncclCommInitRank(&communicator_, ranks, shared->id, rank));
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(ncclMemAlloc(reinterpret_cast<void**>(&memory_), 2 * kPart));
    check(cudaMemset(memory_, 0, 2 * kPart));
    check(ncclCommWindowRegister(communicator_, memory_, 2 * kPart, &window_, NCCL_WIN_COLL_SYMMETRIC));
    check(cudaMallocHost(reinterpret_cast<void**>(&found_), 64));
    check(cudaHostRegister(shared, kSharedBytes, cudaHostRegisterMapped));
    void* mapped = nullptr;
    check(cudaHostGetDevicePointer(&mapped, shared, 0));
    rounds_ = static_cast<Shared*>(mapped)->rounds;
    check(cudaDeviceSynchronize());
    tell("ok");
  }

  void open_device_api() {
    step = "device communicator";
#if VERBENA_NCCL_AT_LEAST(2, 30, 0)
    ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    requirements.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
#else
    ncclDevCommRequirements requirements{};
#endif
    requirements.barrierCount = 1;
    requirements.railGinBarrierCount = 1;
    requirements.ginForceEnable = true;
    requirements.ginContextCount = kContexts;
    requirements.ginSignalCount = kSignals;
    requirements.ginCounterCount = 4;
    check(ncclDevCommCreate(communicator_, &requirements, &device_));
    tell("ok");
  }

  void close() {
    step = "end";
    meet();
    if (device_.nRanks != 0) check(ncclDevCommDestroy(communicator_, &device_));
    check(ncclCommWindowDeregister(communicator_, window_));
    check(cudaHostUnregister(shared));
    check(ncclMemFree(memory_));
    check(ncclCommDestroy(communicator_));
    tell("ok");
  }

  void check_device_api() {
    uint64_t rounds[kContexts] = {};
    for (const size_t bytes : {size_t{4}, size_t{1000}, size_t{64} << 10, size_t{1} << 20, kSmallStride}) {
      for (int context = 0; context < kContexts; ++context) {
        begin("put and signal, " + std::to_string(bytes) + " bytes, context " + std::to_string(context));
        fill_sources(bytes);
        put_to_all<<<1, ranks, 0, stream_>>>(device_, window_, kSmallStride, bytes, context,
                                             ++rounds[context]);
        finish(stream_, communicator_);
        check_targets(bytes);
      }
    }
    begin("values of 1, 2, 4 and 8 bytes");
#if VERBENA_NCCL_AT_LEAST(2, 29, 0)
    check(cudaMemsetAsync(memory_ + kPart, 0, ranks * kSmallStride, stream_));
    finish(stream_, communicator_);
    meet();
    put_values<<<1, ranks, 0, stream_>>>(device_, window_, kSmallStride, 0, ++rounds[0]);
    finish(stream_, communicator_);
    for (int from = 0; from < ranks; ++from) check_values(from);
    tell("ok");
#else
    // Seen with 2.28.9 over its own transport and over ours: a segmentation fault in libnccl.
    tell("not run, because it would end NCCL's proxy thread in this release");
#endif

    uint64_t reused = 0;
    for (const bool uses_counter : {true, false}) {
      begin(uses_counter ? "counters" : "flush");
      reuse_source<<<1, 1, 0, stream_>>>(device_, window_, kSmallStride, 64, uses_counter, 1, ++reused);
      finish(stream_, communicator_);
      const int from = (rank + ranks - 1) % ranks;
      uint64_t wrong = 0;
      for (int put = 0; put < 64; ++put)
        wrong += count(kPart + from * kSmallStride + put * 1024, 256, from, rank, put);
      report(wrong);
    }

    begin("exact counts");
    constexpr int kBlocks = 8, kEach = 2000;
    for (int context = 0; context < kContexts; ++context)
      count_signals<<<kBlocks, ranks, 0, stream_>>>(device_, kEach, 10, context);
    for (int context = 0; context < kContexts; ++context) {
      const uint64_t due = uint64_t{kEach} * (kEach + 1) / 2 * kBlocks * ranks;
      wait_for_signal<<<1, 1, 0, stream_>>>(device_, 10, context, due, found_);
      finish(stream_, communicator_);
      if (*found_ != due)
        die("the signal has the value " + std::to_string(*found_) + " and not " + std::to_string(due));
    }
    meet();
    tell(std::to_string(uint64_t{kEach} * kBlocks * ranks * kContexts) + " signals received: ok");

    begin("barriers");
    found_[1] = 0;
    meet_by_barriers<<<1, 64, 0, stream_>>>(device_, 1, 1000, rounds_,
                                            reinterpret_cast<unsigned long long*>(found_ + 1));
    finish(stream_, communicator_);
    report(found_[1]);

#if VERBENA_NCCL_AT_LEAST(2, 30, 7)
    uint64_t values = 0;
    for (const size_t bytes : {size_t{4}, size_t{64} << 10, kSmallStride}) {
      begin("get, " + std::to_string(bytes) + " bytes");
      fill_sources(bytes);
      get_from_all<<<1, ranks, 0, stream_>>>(device_, window_, kSmallStride, bytes, 2);
      finish(stream_, communicator_);
      check_targets(bytes);
      begin("signal in the window, " + std::to_string(bytes) + " bytes");
      const size_t word = kPart - 4096;
      fill_sources(bytes);
      values += 3;
      signal_in_window<<<1, ranks, 0, stream_>>>(device_, window_, kSmallStride, bytes, word, 3, values);
      finish(stream_, communicator_);
      check_targets(bytes);
    }
#endif
  }

  void measure() {
    if (ranks != 2) return;
    step = "latency";
    double latency_us = 0;
    uint64_t turns = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {  // the first warms up
      meet();
      constexpr int kTurns = 2000;
      latency_us = time([&] { ping_pong<<<1, 1, 0, stream_>>>(device_, window_, kTurns, turns, 8); }) * 1e6 /
                   kTurns / 2;
      turns += kTurns;
    }
    if (rank == 0) std::printf("put of 8 bytes and signal, one way: %.2f us\n", latency_us);
    step = "rate";
    for (const int blocks : {1, kContexts, 4 * kContexts}) {
      meet();
      const int puts = 40'000 / blocks;
      if (rank != 0) continue;
      const double took =
          time([&] { send_many<<<blocks, 1, 0, stream_>>>(device_, window_, puts, 8, 64, kContexts); });
      std::printf("put-signals of 8 bytes, %d blocks: %.0f per second\n", blocks, puts * blocks / took);
    }
    step = "bandwidth";
    meet();
    if (rank == 0) {
      double best = 1e9;
      for (int attempt = 0; attempt < 3; ++attempt)
        best = std::min(best,
                        time([&] { send_many<<<1, 1, 0, stream_>>>(device_, window_, 8, kPart, kPart, 1); }));
      const double direct = time_direct_write();
      std::printf("put of 256 MiB: %.1f GB/s; direct write: %.1f GB/s; ratio %.2f\n", 8 * kPart / best * 1e-9,
                  kPart / direct * 1e-9, 8 * kPart / best / (kPart / direct));
    }
    meet();
  }

#if VERBENA_NCCL_AT_LEAST(2, 30, 7)
  void check_host_api() {
    for (const size_t bytes : {size_t{4}, size_t{1000}, size_t{1} << 20, kSmallStride}) {
      begin("put and signal on a stream, " + std::to_string(bytes) + " bytes");
      fill_sources(bytes);
      put_on_stream(bytes);
      finish(stream_, communicator_);
      check_targets(bytes);
    }
    begin("put and signal in a graph, 10 replays");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    put_on_stream(1 << 16);
    check(cudaStreamEndCapture(stream_, &graph));
    check(cudaGraphInstantiate(&executable, graph, 0));
    for (int replay = 0; replay < 10; ++replay) {
      fill_sources(1 << 16);
      check(cudaGraphLaunch(executable, stream_));
      finish(stream_, communicator_);
      check_targets(1 << 16);
    }
    check(cudaGraphExecDestroy(executable));
    check(cudaGraphDestroy(graph));
    meet();
  }

  // Against what each rank has sent.
  void check_gathers() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    step = "communicator without SMs";
    ncclComm_t zero = nullptr;
    meet();
    if (rank == 0) check(ncclGetUniqueId(&shared->id));
    meet();
    check(ncclCommInitRankConfig(&zero, ranks, shared->id, rank, &config));
    ncclWindow_t window = nullptr;
    check(ncclCommWindowRegister(zero, memory_, 2 * kPart, &window, NCCL_WIN_COLL_SYMMETRIC));
    for (const size_t bytes : {size_t{64} << 10, size_t{1} << 20, size_t{32} << 20}) {
      begin("gather without SMs, " + std::to_string(bytes) + " bytes");
      ++round_;
      fill<<<64, 256, 0, stream_>>>(reinterpret_cast<uint32_t*>(memory_), bytes / 4, rank, 0, round_);
      check(cudaMemsetAsync(memory_ + kPart, 0xee, ranks * bytes, stream_));
      finish(stream_, communicator_);
      meet();
      check(ncclAllGather(memory_, memory_ + kPart, bytes, ncclChar, zero, stream_));
      finish(stream_, zero);
      uint64_t wrong = 0;
      for (int from = 0; from < ranks; ++from)
        wrong += count(kPart + from * bytes, bytes / 4, from, 0, round_);
      report(wrong);
    }
    step = "end of the communicator without SMs";
    check(ncclCommWindowDeregister(zero, window));
    check(ncclCommDestroy(zero));
    meet();
  }
#else
  void check_host_api() { tell("put and signal on streams need NCCL 2.30.7 or later: not run"); }
  void check_gathers() { tell("gathers without SMs need NCCL 2.30.7 or later: not run"); }
#endif

 private:
  void tell(const std::string& text) {
    if (rank == 0) std::printf("%s: %s\n", step.c_str(), text.c_str());
    std::fflush(stdout);
  }
  void begin(const std::string& name) {
    step = name;
    meet();
  }
  void report(uint64_t wrong) {
    if (wrong != 0) die(std::to_string(wrong) + " wrong");
    meet();
    tell("0 wrong");
  }

  void fill_sources(size_t bytes) {
    ++round_;
    for (int peer = 0; peer < ranks; ++peer) {
      fill<<<64, 256, 0, stream_>>>(reinterpret_cast<uint32_t*>(memory_ + peer * kSmallStride), bytes / 4,
                                    rank, peer, round_);
    }
    check(cudaMemsetAsync(memory_ + kPart, 0xee, ranks * kSmallStride, stream_));
    finish(stream_, communicator_);
    meet();
  }
  uint64_t count(size_t offset, size_t words, int from, int to, uint32_t round) {
    found_[2] = 0;
    count_wrong<<<64, 256, 0, stream_>>>(reinterpret_cast<uint32_t*>(memory_ + offset), words, from, to,
                                         round, reinterpret_cast<unsigned long long*>(found_ + 2));
    finish(stream_, communicator_);
    return found_[2];
  }
  // And nothing was written after them.
  void check_targets(size_t bytes) {
    uint64_t wrong = 0;
    for (int from = 0; from < ranks; ++from) {
      wrong += count(kPart + from * kSmallStride, bytes / 4, from, rank, round_);
      if (bytes == kSmallStride) continue;
      uint8_t after = 0;
      check(cudaMemcpy(&after, memory_ + kPart + from * kSmallStride + bytes, 1, cudaMemcpyDeviceToHost));
      if (after != 0xee) ++wrong;
    }
    report(wrong);
  }
#if VERBENA_NCCL_AT_LEAST(2, 29, 0)
  void check_values(int from) {
    uint8_t found[32];
    check(cudaMemcpy(found, memory_ + kPart + from * kSmallStride, sizeof(found), cudaMemcpyDeviceToHost));
    const uint64_t value = 0x0102030405060708ULL * static_cast<uint64_t>(from + 1);
    uint8_t expected[32] = {};
    std::memcpy(expected + 1, &value, 1);
    std::memcpy(expected + 6, &value, 2);
    std::memcpy(expected + 12, &value, 4);
    std::memcpy(expected + 24, &value, 8);
    if (std::memcmp(found, expected, sizeof(found)) != 0)
      die("wrong bytes from rank " + std::to_string(from));
  }
#endif

#if VERBENA_NCCL_AT_LEAST(2, 30, 7)
  void put_on_stream(size_t bytes) {
    check(ncclGroupStart());
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      check(ncclPutSignal(memory_ + peer * kSmallStride, bytes, ncclChar, peer, window_,
                          kPart + rank * kSmallStride, 0, 0, 0, communicator_, stream_));
    }
    check(ncclGroupEnd());
    std::vector<ncclWaitSignalDesc_t> due;
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != rank) due.push_back({1, peer, 0, 0});
    check(ncclWaitSignal(static_cast<int>(due.size()), due.data(), communicator_, stream_));
    check(cudaMemcpyAsync(memory_ + kPart + rank * kSmallStride, memory_ + rank * kSmallStride, bytes,
                          cudaMemcpyDeviceToDevice, stream_));
  }
#endif

  double time(const std::function<void()>& launch) {
    const double begin = now_s();
    launch();
    check(cudaGetLastError());
    finish(stream_, communicator_);
    return now_s() - begin;
  }
  double time_direct_write() {
    int gpus = 0;
    check(cudaGetDeviceCount(&gpus));
    void* there = nullptr;
    check(cudaSetDevice(1 % gpus));
    check(cudaMalloc(&there, kPart));
    check(cudaSetDevice(0));
    if (gpus > 1 && cudaDeviceEnablePeerAccess(1, 0) != cudaSuccess)
      cudaGetLastError();  // NCCL may have done it
    double best = 1e9;
    for (int attempt = 0; attempt < 4; ++attempt) {
      const double took = time([&] {
        for (int i = 0; i < 8; ++i) check(cudaMemcpyPeerAsync(there, 1 % gpus, memory_, 0, kPart, stream_));
      });
      best = std::min(best, took / 8);
    }
    check(cudaFree(there));
    return best;
  }

  ncclComm_t communicator_ = nullptr;
  ncclDevComm device_{};
  ncclWindow_t window_ = nullptr;
  cudaStream_t stream_ = nullptr;
  uint8_t* memory_ = nullptr;
  uint64_t *found_ = nullptr, *rounds_ = nullptr;
  uint32_t round_ = 0;
};

void run_rank(const std::vector<std::string>& parts) {
  // Ranks of other hosts are reached over the network; mostly each is a separate host.
  setenv("NCCL_HOSTID", ("host" + std::to_string(rank * hosts / ranks)).c_str(), 0);
  const auto wants = [&](const char* part) {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  Rank self;
  if (wants("device") || wants("figures")) self.open_device_api();
  if (wants("device")) self.check_device_api();
  if (wants("figures")) self.measure();
  if (wants("host")) self.check_host_api();
  if (wants("gather")) self.check_gathers();
  self.close();
}

}  // namespace

// nccl-gin RANKS[/HOSTS] PART...    parts: device figures host gather
int main(int argc, char** argv) {
  const std::vector<std::string> parts(argv + std::min(argc, 2), argv + argc);
  ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  const char* const slash = argc > 1 ? std::strchr(argv[1], '/') : nullptr;
  hosts = slash == nullptr ? ranks : std::atoi(slash + 1);
  if (ranks < 2 || ranks > kMaxRanks || hosts < 1 || ranks % hosts != 0 || parts.empty()) {
    std::fprintf(stderr, "usage: nccl-gin RANKS[/HOSTS] PART...   parts: device figures host gather\n");
    return 2;
  }
  shared = static_cast<Shared*>(
      mmap(nullptr, kSharedBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<pid_t> processes;
  for (rank = 0; rank < ranks; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      run_rank(parts);
      std::fflush(nullptr);
      _exit(0);
    }
    processes.push_back(process);
  }
  int failed = 0;
  for (const pid_t process : processes) {
    int state = 0;
    waitpid(process, &state, 0);
    if (state != 0) {
      ++failed;
      shared->failed = 1;
    }
  }
  std::printf("nccl-gin: %d ranks: %s\n", ranks, failed == 0 ? "ok" : "FAILED");
  return failed == 0 ? 0 : 1;
}
