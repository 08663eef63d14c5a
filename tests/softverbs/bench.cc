#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "bench_wire.h"
#include "fixture.h"
#include "gpu_memory.h"

#undef ibv_reg_mr

// softverbs-bench: what the device costs above the kernel's own copy between two processes, both measured in
// one run. softverbs-bench --gpu FROM TO [--busy]: messages between two GPUs' memory, of two processes; with
// --busy a kernel of each process waits on its GPU meanwhile, as NCCL's do. Ends with what the copier has
// measured and chosen. softverbs-bench --wire [FROM TO]: over TCP between two addresses of this host.
namespace verbena::softverbs_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kBytes = 64 << 20;
constexpr int kTrials = 9;

double count_us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double get_median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// One end of two processes that each own memory and know the other's.
struct End {
  End(int end_socket, std::optional<int> gpu)
      : socket(end_socket),
        memory(gpu ? Kind::kExportable : Kind::kPageable, gpu.value_or(0), kBytes),
        mr(ibv_reg_mr(node.pd, reinterpret_cast<void*>(memory.address()), kBytes, kAllAccess)) {
    memory.clear();
    tell(socket, pair.address());
    pair.connect(hear<Address>(socket));
    tell(socket, RemoteMemory{memory.address(), mr->rkey});
    far = hear<RemoteMemory>(socket);
    tell(socket, getpid());
    far_pid = hear<int>(socket);
  }
  ~End() { ibv_dereg_mr(mr); }

  volatile uint64_t* word(size_t bytes) { return reinterpret_cast<uint64_t*>(memory.address() + bytes - 8); }

  void post_write(size_t offset, size_t bytes, unsigned flags, ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    ibv_sge sge{memory.address() + offset, static_cast<uint32_t>(bytes), mr->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.opcode = opcode;
    request.send_flags = flags;
    request.sg_list = &sge;
    request.num_sge = 1;
    request.wr.rdma.remote_addr = far.address + offset;
    request.wr.rdma.rkey = far.rkey;
    if (ibv_post_send(pair.qp, &request, &bad) != 0) abort();
  }
  void wait_write() {
    ibv_wc wc{};
    wait(wc);
  }
  void post_receive() {
    ibv_recv_wr request{}, *bad = nullptr;
    if (ibv_post_recv(pair.qp, &request, &bad) != 0) abort();
  }
  // A message and its notice; the completion of the write may come before the other's notice or behind it.
  void wait_notice() {
    ibv_wc wc{};
    while (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM) wait(wc);
  }
  void wait(ibv_wc& wc) {
    while (ibv_poll_cq(node.cq, 1, &wc) == 0) {
    }
    if (wc.status != IBV_WC_SUCCESS) abort();
  }
  // The kernel's copy, with the last word as a separate piece.
  void copy_raw(size_t bytes) {
    auto* from = reinterpret_cast<uint8_t*>(memory.address());
    iovec local[] = {{from, bytes - 8}, {from + bytes - 8, 8}};
    iovec remote{reinterpret_cast<void*>(far.address), bytes};
    if (process_vm_writev(far_pid, local, 2, &remote, 1, 0) != static_cast<ssize_t>(bytes)) abort();
  }

  int socket;
  Node node;
  QueuePair pair{node, {.send_requests = 256}};
  TestMemory memory;
  ibv_mr* mr;
  RemoteMemory far{};
  int far_pid = 0;
};

// Both ends take turns; each waits for the other's number in the last word. The result is the median of half
// a turn.
std::vector<double> play_turns(End& end, size_t bytes, int turns, bool is_raw, bool is_first, uint64_t base) {
  std::vector<double> half_turns_us;
  for (int turn = 1; turn <= turns; ++turn) {
    const auto start = Clock::now();
    const uint64_t number = base + static_cast<uint64_t>(turn) * 2;
    for (int step = 0; step < 2; ++step) {
      const bool is_mine = (step == 0) == is_first;
      const uint64_t expected = number + static_cast<uint64_t>(step);
      if (!is_mine) {
        while (*end.word(bytes) != expected) {
        }
        continue;
      }
      *end.word(bytes) = expected;
      if (is_raw) {
        end.copy_raw(bytes);
      } else {
        end.post_write(0, bytes, IBV_SEND_SIGNALED);
        end.wait_write();
      }
    }
    half_turns_us.push_back(count_us_since(start) / 2);
  }
  return half_turns_us;
}

constexpr size_t kLatencySizes[] = {8, 64, 1024, 4096};
constexpr int kTurns = 4000;

void measure_latency(End& end, bool is_first) {
  uint64_t base = 0;
  for (const size_t bytes : kLatencySizes) {
    std::vector<double> device, raw;
    for (int trial = 0; trial < kTrials; ++trial, base += 4 * kTurns) {
      device.push_back(get_median(play_turns(end, bytes, kTurns / 2, false, is_first, base)));
      raw.push_back(get_median(play_turns(end, bytes, kTurns / 2, true, is_first, base + 2 * kTurns)));
    }
    if (!is_first) continue;
    const double ours = get_median(device), kernel = get_median(raw);
    printf("latency    %8zu B  %8.2f us    process_vm_writev %8.2f us    ratio %.2f\n", bytes, ours, kernel,
           ours / kernel);
  }
}

// Megabytes a second, one trial.
double stream(End& end, size_t bytes, bool is_raw) {
  constexpr double kTrialUs = 60'000;
  constexpr uint64_t kWindow = 16;
  uint64_t posted = 0, done = 0;
  const auto start = Clock::now();
  while (count_us_since(start) < kTrialUs || done < posted) {
    if (is_raw) {
      end.copy_raw(bytes);
      done = ++posted;
      continue;
    }
    while (posted - done < kWindow && count_us_since(start) < kTrialUs) {
      end.post_write(0, bytes, IBV_SEND_SIGNALED);
      ++posted;
    }
    if (done < posted) end.wait_write();
    ++done;
  }
  return static_cast<double>(posted) * static_cast<double>(bytes) / count_us_since(start);
}

void measure_bandwidth(End& end) {
  for (size_t bytes = 4096; bytes <= 16 << 20; bytes *= 4) {
    std::vector<double> device, raw;
    for (int trial = 0; trial < kTrials; ++trial) {
      device.push_back(stream(end, bytes, false));
      raw.push_back(stream(end, bytes, true));
    }
    const double ours = get_median(device), kernel = get_median(raw);
    printf("bandwidth  %8zu B  %8.0f MB/s  process_vm_writev %8.0f MB/s  ratio %.2f\n", bytes, ours, kernel,
           ours / kernel);
  }
}

void measure_gpu(End& end) {
  for (size_t bytes = 8; bytes <= kBytes / 4; bytes *= 4) {
    std::vector<double> rates;
    std::vector<double> single_us;
    for (int trial = 0; trial < kTrials; ++trial) {
      rates.push_back(stream(end, bytes, false));
      for (int i = 0; i < 20; ++i) {
        const auto start = Clock::now();
        end.post_write(0, bytes, IBV_SEND_SIGNALED);
        end.wait_write();
        single_us.push_back(count_us_since(start));
      }
    }
    printf("gpu        %8zu B  %8.1f MB/s  one alone %8.2f us\n", bytes, get_median(rates),
           get_median(single_us));
    fflush(stdout);
    tell(end.socket, true);  // the other waits on
  }
}

// Both ends take turns with a message and its notice. Half of a turn, the median and the time that one in ten
// exceeds.
void play_gpu_turns(End& end, bool is_first) {
  constexpr int kWarm = 20, kGpuTurns = 300;
  for (const size_t bytes : {8, 64, 512, 1024, 4096, 8192, 16384, 32768, 65536, 262144, 1048576}) {
    std::vector<double> half_turns_us;
    for (int turn = 0; turn < kWarm + kGpuTurns; ++turn) {
      end.post_receive();
      tell(end.socket, true);
      hear<bool>(end.socket);
      const auto start = Clock::now();
      if (!is_first) end.wait_notice();
      end.post_write(0, bytes, turn % 16 == 0 ? IBV_SEND_SIGNALED : 0, IBV_WR_RDMA_WRITE_WITH_IMM);
      if (is_first) end.wait_notice();
      if (turn >= kWarm) half_turns_us.push_back(count_us_since(start) / 2);
    }
    if (!is_first) continue;
    std::sort(half_turns_us.begin(), half_turns_us.end());
    printf("turn       %8zu B  %8.2f us    one in ten over %8.2f us\n", bytes,
           half_turns_us[half_turns_us.size() / 2], half_turns_us[half_turns_us.size() * 9 / 10]);
    fflush(stdout);
  }
}

// A kernel that waits on this end's GPU until its word is written.
class BusyGpu {
 public:
  BusyGpu(int gpu, bool is_busy) : memory_(Kind::kDevice, gpu, 4096), is_busy_(is_busy) {
    memory_.clear();
    if (is_busy && !spin_until(gpu, memory_.address())) abort();
  }
  ~BusyGpu() {
    memory_.fill(1);
    while (is_busy_ && is_spinning()) usleep(100);
  }
  BusyGpu(const BusyGpu&) = delete;
  BusyGpu& operator=(const BusyGpu&) = delete;

 private:
  TestMemory memory_;
  bool is_busy_;
};

int run_gpus(int from, int to, bool is_busy) {
  Child child([=](int socket) {
    start_cuda();
    End end(socket, to);
    const BusyGpu gpu(to, is_busy);
    play_gpu_turns(end, false);
    while (hear<bool>(socket)) {
    }
  });
  start_cuda();
  End end(child.socket(), from);
  {
    const BusyGpu gpu(from, is_busy);
    play_gpu_turns(end, true);
    measure_gpu(end);
  }
  printf("%s", describe_copier().c_str());
  tell(child.socket(), false);
  child.join();
  return 0;
}

int run() {
  Child child([](int socket) {
    End end(socket, {});
    measure_latency(end, false);
    hear<bool>(socket);
  });
  End end(child.socket(), {});
  measure_latency(end, true);
  measure_bandwidth(end);
  tell(child.socket(), true);
  child.join();
  return 0;
}

}  // namespace
}  // namespace verbena::softverbs_test

int main(int argument_count, char** arguments) {
  setenv("SOFTVERBS_JOB", ("bench-" + std::to_string(getpid())).c_str(), 0);
  if ((argument_count == 4 || argument_count == 5) && std::string(arguments[1]) == "--gpu") {
    const bool is_busy = argument_count == 5 && std::string(arguments[4]) == "--busy";
    return verbena::softverbs_test::run_gpus(atoi(arguments[2]), atoi(arguments[3]), is_busy);
  }
  if (argument_count >= 2 && argument_count <= 4 && std::string(arguments[1]) == "--wire") {
    const bool has_addresses = argument_count == 4;
    return verbena::softverbs_test::measure_wire(has_addresses ? arguments[2] : "127.0.0.1",
                                                 has_addresses ? arguments[3] : "127.0.0.2");
  }
  if (argument_count == 1) return verbena::softverbs_test::run();
  fprintf(stderr, "usage: softverbs-bench [--gpu FROM TO [--busy] | --wire [ADDRESS ADDRESS]]\n");
  return 2;
}
