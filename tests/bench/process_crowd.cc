// Many processes of one host, each connected with every other one in both directions, as the ranks of a job
// are: how long that takes, what it takes of memory, and how fast all send to all. Every byte is compared.
// usage: process_crowd PLUGIN PROCESSES [BYTES...]   (2 to 256 processes; 1024 and 131072 bytes)
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "bench/descriptor_limit.h"
#include "bench/warnings.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/net_plugin.h"
#include "transport/support/memory_use.h"

namespace {

using namespace verbena;
using namespace verbena::tools;

constexpr int kHostType = 1, kTableVersion = 11, kDevice = 0;
constexpr size_t kMostProcesses = 256, kOpen = 8;  // messages that a process has open in each direction
constexpr size_t kShifts = 4096;                   // of the pattern: each message begins elsewhere in it
constexpr double kPatienceS = 300;

using Handle = std::array<char, abi::kHandleBytes>;

// What the processes share. Rank r's handle for peer p is number r * processes + p.
struct Meeting {
  pthread_barrier_t barrier;
  std::atomic<uint64_t> memory_bytes{0}, most_memory_bytes{0};
  std::array<Handle, kMostProcesses * kMostProcesses> handles;
};

Meeting* make_meeting(size_t processes) {
  void* const memory =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw ToolError("no shared memory");
  auto* const meeting = new (memory) Meeting;
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&meeting->barrier, &attributes, static_cast<unsigned>(processes));
  return meeting;
}

struct CrowdPeer {
  void *listen_comm = nullptr, *send_comm = nullptr, *receive_comm = nullptr;
  void *send_mhandle = nullptr, *receive_mhandle = nullptr;
};

class Member {
 public:
  Member(NetPlugin& net, Meeting& meeting, size_t rank, size_t processes)
      : net_(net), meeting_(meeting), rank_(rank), processes_(processes), peers_(processes) {}

  void run(const std::vector<size_t>& sizes) {
    const size_t longest = *std::max_element(sizes.begin(), sizes.end());
    pattern_.resize(longest + kShifts);
    for (size_t i = 0; i < pattern_.size(); ++i)
      pattern_[i] = static_cast<std::byte>(i * 2654435761U >> 13 & 0xFF);
    landing_.resize(std::max<size_t>(kOpen * longest, 1));
    const uint64_t before = transport::measure_memory().process_bytes;
    meet();
    const int64_t begin_ns = now_ns();
    connect_all();
    meet();
    if (rank_ == 0)
      std::printf("%zu processes, %zu channels: %.2f s to connect them\n", processes_,
                  processes_ * (processes_ - 1), seconds_since(begin_ns));
    const uint64_t used = transport::measure_memory().process_bytes - before;
    meeting_.memory_bytes += used;
    for (uint64_t most = meeting_.most_memory_bytes;
         used > most && !meeting_.most_memory_bytes.compare_exchange_weak(most, used);)
      continue;
    meet();
    if (rank_ == 0)
      std::printf("%zu processes: %.2f MiB of memory each, %.2f at most\n", processes_,
                  static_cast<double>(meeting_.memory_bytes) / static_cast<double>(processes_) / (1 << 20),
                  static_cast<double>(meeting_.most_memory_bytes) / (1 << 20));
    register_all();
    for (const size_t bytes : sizes)
      for (int round = 0; round < 3; ++round) send_to_all(bytes);
    meet();
    const int64_t close_ns = now_ns();
    close_all();
    meet();
    if (rank_ == 0) std::printf("%zu processes: %.2f s to close all\n", processes_, seconds_since(close_ns));
  }

 private:
  static double seconds_since(int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) * 1e-9; }
  void meet() { pthread_barrier_wait(&meeting_.barrier); }
  Handle& handle(size_t of, size_t to) { return meeting_.handles[of * processes_ + to]; }

  void connect_all() {
    for (size_t i = 1; i < processes_; ++i) {
      const size_t peer = (rank_ + i) % processes_;
      peers_[peer].listen_comm = net_.listen(kDevice, handle(rank_, peer).data());
    }
    meet();
    Spinner spinner(kPatienceS);
    for (size_t left = 2 * (processes_ - 1); left != 0;) {
      const size_t before = left;
      for (size_t i = 1; i < processes_; ++i) {
        const size_t at = (rank_ + i) % processes_;
        CrowdPeer& peer = peers_[at];
        if (peer.send_comm == nullptr) {
          peer.send_comm = net_.connect(kDevice, handle(at, rank_).data());
          if (peer.send_comm != nullptr) --left;
        }
        if (peer.receive_comm == nullptr) {
          abi::NetDeviceHandle* none = nullptr;
          peer.receive_comm = net_.accept(peer.listen_comm, &none);
          if (peer.receive_comm != nullptr) --left;
        }
      }
      if (left != before) continue;
      spinner.idle("a connection to every process");
      sched_yield();
    }
    for (CrowdPeer& peer : peers_)
      if (peer.listen_comm != nullptr) net_.close_listen(peer.listen_comm);
  }

  void register_all() {
    for (CrowdPeer& peer : peers_) {
      if (peer.send_comm == nullptr) continue;
      peer.send_mhandle = net_.register_memory(peer.send_comm, pattern_.data(), pattern_.size(), kHostType);
      peer.receive_mhandle =
          net_.register_memory(peer.receive_comm, landing_.data(), landing_.size(), kHostType);
    }
  }

  std::byte* find_message(size_t from, size_t to) { return &pattern_[(from * 31 + to * 7) % kShifts]; }

  // In step i to the i-th behind this one and from the i-th before it, a few steps at a time.
  void send_to_all(size_t bytes) {
    struct Open {
      void* request = nullptr;
      size_t peer = 0;
    };
    std::array<Open, kOpen> sends{}, receives{};
    meet();
    const int64_t begin_ns = now_ns();
    size_t next_send = 1, next_receive = 1;
    Spinner spinner(kPatienceS);
    for (size_t left = 2 * (processes_ - 1); left != 0;) {
      bool has_moved = false;
      for (size_t i = 0; i < kOpen; ++i) {
        std::byte* const landing = landing_.data() + i * bytes;
        Open& receive = receives[i];
        if (receive.request == nullptr && next_receive < processes_) {
          receive.peer = (rank_ + processes_ - next_receive) % processes_;
          CrowdPeer& peer = peers_[receive.peer];
          receive.request = net_.irecv(peer.receive_comm, landing, bytes, peer.receive_mhandle, false);
          if (receive.request != nullptr) ++next_receive, has_moved = true;
        }
        Open& send = sends[i];
        if (send.request == nullptr && next_send < processes_) {
          send.peer = (rank_ + next_send) % processes_;
          CrowdPeer& peer = peers_[send.peer];
          send.request = net_.isend(peer.send_comm, find_message(rank_, send.peer), bytes, peer.send_mhandle);
          if (send.request != nullptr) ++next_send, has_moved = true;
        }
        if (send.request != nullptr && net_.test(send.request)) {
          send.request = nullptr;
          --left, has_moved = true;
        }
        if (receive.request == nullptr || !net_.test(receive.request)) continue;
        receive.request = nullptr;
        --left, has_moved = true;
        if (std::memcmp(landing, find_message(receive.peer, rank_), bytes) != 0)
          throw ToolError("wrong bytes from process " + std::to_string(receive.peer));
        std::memset(landing, 0, bytes);
      }
      if (has_moved) continue;
      spinner.idle("all messages");
      sched_yield();
    }
    meet();
    const double took_s = seconds_since(begin_ns);
    const double messages = static_cast<double>(processes_ * (processes_ - 1));
    if (rank_ == 0)
      std::printf("%zu processes, all to all, %zu bytes each: %.3f s, %.0f messages/s, %.2f GB/s, 0 wrong\n",
                  processes_, bytes, took_s, messages / took_s,
                  messages * static_cast<double>(bytes) / took_s * 1e-9);
  }

  void close_all() {
    for (CrowdPeer& peer : peers_) {
      if (peer.send_comm == nullptr) continue;
      net_.deregister_memory(peer.send_comm, peer.send_mhandle);
      net_.deregister_memory(peer.receive_comm, peer.receive_mhandle);
      net_.close_send(peer.send_comm);
      net_.close_receive(peer.receive_comm);
    }
  }

  NetPlugin& net_;
  Meeting& meeting_;
  const size_t rank_, processes_;
  std::vector<CrowdPeer> peers_;
  std::vector<std::byte> pattern_, landing_;
};

int run_member(const char* plugin, Meeting& meeting, size_t rank, size_t processes,
               const std::vector<size_t>& sizes) {
  try {
    bench::raise_descriptor_limit();
    const PluginLibrary library(plugin);
    const std::unique_ptr<NetPlugin> net = library.adapt(kTableVersion);
    net->init(log_plugin_line<print_warning>);
    net->count_devices();
    Member(*net, meeting, rank, processes).run(sizes);
    net->finalize();
    return kExitOk;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "process_crowd: process %zu: %s\n", rank, error.what());
    return kExitFailed;
  }
}

// The first that fails ends all.
int run(const char* plugin, size_t processes, const std::vector<size_t>& sizes) {
  Meeting* const meeting = make_meeting(processes);
  const pid_t parent = getpid();
  std::vector<pid_t> members;
  for (size_t rank = 0; rank < processes; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(kExitFailed);
      const int status = run_member(plugin, *meeting, rank, processes, sizes);
      std::fflush(stdout);
      _exit(status);
    }
    if (pid > 0) members.push_back(pid);
  }
  int outcome = members.size() == processes ? kExitOk : kExitFailed;
  const auto end_all = [&] {
    for (const pid_t pid : members) kill(pid, SIGKILL);
  };
  if (outcome != kExitOk) end_all();
  for (size_t left = members.size(); left != 0; --left) {
    int status = 0;
    const pid_t pid = wait(&status);
    std::erase(members, pid);
    if (status == 0 || outcome != kExitOk) continue;
    outcome = kExitFailed;
    end_all();
  }
  return outcome;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t processes = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  std::vector<size_t> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {1024, 131072};
  if (processes < 2 || processes > kMostProcesses) {
    std::fprintf(stderr, "usage: %s PLUGIN PROCESSES [BYTES...]\n", argv[0]);
    return kExitUsage;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return run(argv[1], processes, sizes);
}
