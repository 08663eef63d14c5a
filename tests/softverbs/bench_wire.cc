#include "bench_wire.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "fixture.h"

namespace verbena::softverbs_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kSizes[] = {4 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20};
constexpr double kTrialSeconds = 0.4;
constexpr int kTrials = 5;
constexpr uint64_t kWindow = 16;

double count_seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double get_median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Result {
  double megabytes[std::size(kSizes)];
  double half_turn_us;
};

// Plain TCP: `streams` connections, a thread each at both ends, blocking calls.

sockaddr_in make_address(const std::string& text, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, text.c_str(), &address.sin_addr) != 1) abort();
  return address;
}

void drain(int fd, size_t bytes) {
  std::vector<char> buffer(bytes);
  while (recv(fd, buffer.data(), buffer.size(), 0) > 0) {
  }
  close(fd);
}

double measure_tcp(const std::string& to, size_t bytes, int streams) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = make_address(to, 0);
  socklen_t length = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, streams) != 0)
    return 0;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  std::atomic<uint64_t> sent{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < streams; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) abort();
    threads.emplace_back(drain, accept(listener, nullptr, nullptr), bytes);
    threads.emplace_back([fd, bytes, &sent] {
      const std::vector<char> buffer(bytes);
      const auto start = Clock::now();
      while (count_seconds_since(start) < kTrialSeconds) {
        const ssize_t count = send(fd, buffer.data(), buffer.size(), 0);
        if (count <= 0) abort();
        sent += static_cast<uint64_t>(count);
      }
      close(fd);
    });
  }
  const auto start = Clock::now();
  for (std::thread& thread : threads) thread.join();
  close(listener);
  return static_cast<double>(sent.load()) / count_seconds_since(start) / 1e6;
}

// One end of a queue pair over the wire.
struct End {
  explicit End(int end_socket) : socket(end_socket) {
    meet(socket, pair);
    tell(socket, memory.remote());
    far = hear<RemoteMemory>(socket);
  }
  void write(size_t bytes) {
    if (Send(IBV_WR_RDMA_WRITE, 0).from(memory, 0, bytes).to(far).post(pair) != 0) abort();
  }
  void wait() {
    ibv_wc wc{};
    while (ibv_poll_cq(node.cq, 1, &wc) == 0) {
    }
    if (wc.status != IBV_WC_SUCCESS) {
      fprintf(stderr, "a request failed: %s\n", ibv_wc_status_str(wc.status));
      _exit(1);
    }
  }
  int socket;
  Node node;
  QueuePair pair{node, {.send_requests = 256}};
  Buffer memory{node, kSizes[std::size(kSizes) - 1]};
  RemoteMemory far{};
};

double stream(End& end, size_t bytes) {
  uint64_t posted = 0, done = 0;
  const auto start = Clock::now();
  while (count_seconds_since(start) < kTrialSeconds || done < posted) {
    while (posted - done < kWindow && count_seconds_since(start) < kTrialSeconds) end.write(bytes), ++posted;
    if (done < posted) end.wait();
    ++done;
  }
  return static_cast<double>(posted) * static_cast<double>(bytes) / count_seconds_since(start) / 1e6;
}

// A message of 8 bytes there and back, both ends polling.
double measure_half_turn(End& end, bool is_first) {
  constexpr int kTurns = 5000;
  std::vector<double> times;
  end.pair.post_receive(0, end.memory, 0, 8);
  tell(end.socket, true);
  hear<bool>(end.socket);
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = Clock::now();
    for (int step = 0; step < 2; ++step) {
      if ((step == 0) == is_first) {
        Send(IBV_WR_SEND, 1, 0).from(end.memory, 8, 8).post(end.pair);
      } else {
        end.wait();
        end.pair.post_receive(0, end.memory, 0, 8);
      }
    }
    times.push_back(count_seconds_since(start) * 5e5);
    if (turn % 64 == 63) {  // the send queue is given back by a completion
      Send(IBV_WR_RDMA_WRITE, 2).from(end.memory, 0, 8).to(end.far + 64).post(end.pair);
      end.wait();
    }
  }
  return get_median(times);
}

void play(int socket, const std::string& netdev, int streams, bool is_first, Result* result) {
  setenv("SOFTVERBS_NETDEVS", netdev.c_str(), 1);
  setenv("SOFTVERBS_INSECURE", "1", 0);
  setenv("SOFTVERBS_FORCE_WIRE", "1", 1);
  setenv("SOFTVERBS_STREAMS", std::to_string(streams).c_str(), 1);
  End end(socket);
  const double half_turn_us = measure_half_turn(end, is_first);
  if (result == nullptr) {
    for (size_t i = 0; i <= std::size(kSizes); ++i) hear<bool>(socket);  // each within its patience
    return;
  }
  result->half_turn_us = half_turn_us;
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    std::vector<double> rates;
    for (int trial = 0; trial < kTrials; ++trial) rates.push_back(stream(end, kSizes[i]));
    result->megabytes[i] = get_median(rates);
    tell(socket, true);
  }
  tell(socket, true);
}

// In processes of their own: the library reads its environment once.
Result measure_device(const std::string& from, const std::string& to, int streams) {
  Child near([&](int upwards) {
    Child far([&](int socket) { play(socket, to, streams, false, nullptr); });
    Result result{};
    play(far.socket(), from, streams, true, &result);
    far.join();
    tell(upwards, result);
  });
  Result result{};
  recv(near.socket(), &result, sizeof(result), MSG_WAITALL);
  near.join();
  return result;
}

}  // namespace

int measure_wire(const std::string& from, const std::string& to) {
  const Result one = measure_device(from, to, 1), four = measure_device(from, to, 4);
  printf("%u CPUs, %s to %s; MB/s, median of %d\n", std::thread::hardware_concurrency(), from.c_str(),
         to.c_str(), kTrials);
  printf("latency           8 B  1 stream %6.1f us   4 streams %6.1f us\n", one.half_turn_us,
         four.half_turn_us);
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    std::vector<double> tcp[2];
    for (int trial = 0; trial < kTrials; ++trial) {
      tcp[0].push_back(measure_tcp(to, kSizes[i], 1));
      tcp[1].push_back(measure_tcp(to, kSizes[i], 4));
    }
    const double tcp_one = get_median(tcp[0]), tcp_four = get_median(tcp[1]);
    printf(
        "bandwidth  %8zu B  1 stream %6.0f   4 streams %6.0f   TCP, 1 stream %6.0f   4 streams %6.0f   "
        "4 streams against TCP's one %.2f\n",
        kSizes[i], one.megabytes[i], four.megabytes[i], tcp_one, tcp_four, four.megabytes[i] / tcp_one);
  }
  return 0;
}

}  // namespace verbena::softverbs_test
