// Many connections of the plugin to itself over all its devices in turn, opened and then closed, on one
// thread: for the time of both, what they take of memory and descriptors, how fast the first and the last
// carry messages, and for counting the instructions of the closes, which are made in functions of their own,
// bench_*.
// With `processes`, a process that sends to another one.
// usage: connection_crowd PLUGIN CONNECTIONS [rates | processes]
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/descriptor_limit.h"
#include "bench/warnings.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/net_plugin.h"

namespace {

using namespace verbena;
using namespace verbena::tools;

constexpr int kHostType = 1, kTableVersion = 11;
constexpr double kConnectTimeoutS = 10;
constexpr size_t kBufferBytes = 4096;

struct Connection {
  void *send_comm = nullptr, *receive_comm = nullptr;
  void *send_mhandle = nullptr, *receive_mhandle = nullptr;
};

Connection connect(NetPlugin& net, int device, std::vector<std::byte>& memory) {
  Connection connection;
  std::array<char, abi::kHandleBytes> handle{};
  void* const listen_comm = net.listen(device, handle.data());
  const int64_t deadline_ns = deadline_after_s(kConnectTimeoutS);
  while (connection.send_comm == nullptr || connection.receive_comm == nullptr) {
    if (connection.send_comm == nullptr) connection.send_comm = net.connect(device, handle.data());
    abi::NetDeviceHandle* none = nullptr;
    if (connection.receive_comm == nullptr) connection.receive_comm = net.accept(listen_comm, &none);
    if (now_ns() > deadline_ns) throw ToolError("no connection to itself");
  }
  net.close_listen(listen_comm);
  const auto add_memory = [&](void* comm) {
    return net.register_memory(comm, memory.data(), memory.size(), kHostType);
  };
  connection.send_mhandle = add_memory(connection.send_comm);
  connection.receive_mhandle = add_memory(connection.receive_comm);
  return connection;
}

}  // namespace

extern "C" {

[[gnu::noinline]] void bench_close_send(NetPlugin& net, const Connection& connection) {
  net.deregister_memory(connection.send_comm, connection.send_mhandle);
  net.close_send(connection.send_comm);
}
[[gnu::noinline]] void bench_close_receive(NetPlugin& net, const Connection& connection) {
  net.deregister_memory(connection.receive_comm, connection.receive_mhandle);
  net.close_receive(connection.receive_comm);
}
}

namespace {

// What a part of the run took: by the clock, and of the processor's time of all threads, which other programs
// on the machine do not change.
class Phase {
 public:
  explicit Phase(const char* name) : name_(name) {}
  void show(size_t connections) const {
    std::printf("%5zu connections: %-5s %6.2f s, %6.2f s of processor time\n", connections, name_,
                static_cast<double>(now_ns() - begin_ns_) * 1e-9, read_processor_s() - begin_s_);
  }

 private:
  static double read_processor_s() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }
  const char* name_;
  int64_t begin_ns_ = now_ns();
  double begin_s_ = read_processor_s();
};

// Everything resident, a page shared with others by its share: what softverbs has for a NIC too.
uint64_t measure_memory() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    uint64_t kib = 0;
    if (word == "Pss:" && rollup >> kib) return kib << 10;
  }
  throw ToolError("/proc/self/smaps_rollup has no Pss");
}

size_t count_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// Messages in a second over one connection, as many open as NCCL keeps.
double measure_rate(NetPlugin& net, const Connection& connection, std::vector<std::byte>& memory) {
  constexpr size_t kOpen = 8, kMessages = 200'000;
  std::array<void*, kOpen> sends{}, receives{};
  size_t posted_sends = 0, posted_receives = 0, done = 0;
  const int64_t begin_ns = now_ns();
  while (done < kMessages) {
    for (size_t i = 0; i < kOpen; ++i) {
      if (receives[i] == nullptr && posted_receives < kMessages) {
        receives[i] = net.irecv(connection.receive_comm, memory.data(), memory.size(),
                                connection.receive_mhandle, false);
        posted_receives += receives[i] != nullptr;
      }
      if (sends[i] == nullptr && posted_sends < kMessages) {
        sends[i] = net.isend(connection.send_comm, memory.data(), memory.size(), connection.send_mhandle);
        posted_sends += sends[i] != nullptr;
      }
    }
    for (size_t i = 0; i < kOpen; ++i) {
      if (sends[i] != nullptr && net.test(sends[i])) sends[i] = nullptr;
      if (receives[i] == nullptr || !net.test(receives[i])) continue;
      receives[i] = nullptr;
      ++done;
    }
  }
  for (void* send : sends)
    while (send != nullptr && !net.test(send)) continue;
  return kMessages / (static_cast<double>(now_ns() - begin_ns) * 1e-9);
}

// In the order of a program that destroys its communicators one after the other: the senders of all, then the
// receivers.
void run_all(const char* plugin, size_t count, bool measures_rates) {
  bench::raise_descriptor_limit();
  const PluginLibrary library(plugin);
  const std::unique_ptr<NetPlugin> net = library.adapt(kTableVersion);
  net->init(log_plugin_line<print_warning>);
  std::vector<std::byte> memory(kBufferBytes);
  std::vector<Connection> connections;
  const int devices = net->count_devices();
  const uint64_t memory_before = measure_memory();
  const size_t descriptors_before = count_descriptors();
  const Phase opening("open");
  for (size_t i = 0; i < count; ++i)
    connections.push_back(connect(*net, static_cast<int>(i % static_cast<size_t>(devices)), memory));
  opening.show(count);
  std::printf("%5zu connections: %.1f KiB of memory each, %zu descriptors in all\n", count,
              static_cast<double>(measure_memory() - memory_before) / 1024 / static_cast<double>(count),
              count_descriptors() - descriptors_before);
  if (measures_rates) {
    // One after the other and again: a machine that is busy with something else shows.
    for (int round = 0; round < 3; ++round) {
      const double first = measure_rate(*net, connections.front(), memory);
      std::printf("%5zu connections: %.2f M messages/s over the first, %.2f over the last\n", count,
                  first * 1e-6, measure_rate(*net, connections.back(), memory) * 1e-6);
    }
  }
  const Phase closing("close");
  for (const Connection& connection : connections) bench_close_send(*net, connection);
  for (const Connection& connection : connections) bench_close_receive(*net, connection);
  closing.show(count);
  net->finalize();
}

// --- Two processes: they tell each other over a socket where to connect to, and when.

void tell(int socket, const void* data, size_t bytes) {
  if (write(socket, data, bytes) != static_cast<ssize_t>(bytes)) throw ToolError("the other process is gone");
}
void hear(int socket, void* data, size_t bytes) {
  if (recv(socket, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes))
    throw ToolError("the other process is gone");
}
void meet(int socket) {
  char byte = 0;
  tell(socket, &byte, 1);
  hear(socket, &byte, 1);
}

// One at a time: what is counted is the work of both.
void* open_end(NetPlugin& net, int socket, bool sends, int device) {
  std::array<char, abi::kHandleBytes> handle{};
  void* listen_comm = nullptr;
  if (sends) {
    hear(socket, handle.data(), handle.size());
  } else {
    listen_comm = net.listen(device, handle.data());
    tell(socket, handle.data(), handle.size());
  }
  const int64_t deadline_ns = deadline_after_s(kConnectTimeoutS);
  for (;;) {
    abi::NetDeviceHandle* none = nullptr;
    void* const comm = sends ? net.connect(device, handle.data()) : net.accept(listen_comm, &none);
    if (comm != nullptr) {
      if (!sends) net.close_listen(listen_comm);
      return comm;
    }
    if (now_ns() > deadline_ns) throw ToolError("no connection to the other process");
    std::this_thread::yield();
  }
}

// Messages in a second, as the receiver sees them.
double carry(NetPlugin& net, int socket, bool sends, void* comm, std::vector<std::byte>& memory) {
  constexpr size_t kOpen = 8, kMessages = 100'000;
  void* const mhandle = net.register_memory(comm, memory.data(), memory.size(), kHostType);
  std::array<void*, kOpen> requests{};
  meet(socket);
  const int64_t begin_ns = now_ns();
  size_t posted = 0;
  for (size_t done = 0; done < kMessages;) {
    const size_t before = done;
    for (void*& request : requests) {
      if (request == nullptr && posted < kMessages) {
        request = sends ? net.isend(comm, memory.data(), memory.size(), mhandle)
                        : net.irecv(comm, memory.data(), memory.size(), mhandle, false);
        posted += request != nullptr;
      }
      if (request == nullptr || !net.test(request)) continue;
      request = nullptr;
      ++done;
    }
    if (done == before) std::this_thread::yield();
  }
  const double rate = kMessages / (static_cast<double>(now_ns() - begin_ns) * 1e-9);
  meet(socket);
  net.deregister_memory(comm, mhandle);
  return rate;
}

void run_process(const char* plugin, size_t count, int socket, bool sends) {
  bench::raise_descriptor_limit();
  const PluginLibrary library(plugin);
  const std::unique_ptr<NetPlugin> net = library.adapt(kTableVersion);
  net->init(log_plugin_line<print_warning>);
  const int devices = net->count_devices();
  std::vector<std::byte> memory(kBufferBytes);
  std::vector<void*> comms;
  meet(socket);
  const uint64_t memory_before = measure_memory();
  const size_t descriptors_before = count_descriptors();
  const Phase opening("open");
  for (size_t i = 0; i < count; ++i)
    comms.push_back(open_end(*net, socket, sends, static_cast<int>(i % static_cast<size_t>(devices))));
  meet(socket);
  if (!sends) opening.show(count);
  std::printf("%5zu %s: %.1f KiB of memory each, %zu descriptors in all\n", count,
              sends ? "senders" : "receivers",
              static_cast<double>(measure_memory() - memory_before) / 1024 / static_cast<double>(count),
              count_descriptors() - descriptors_before);
  for (int round = 0; round < 3; ++round) {
    const double first = carry(*net, socket, sends, comms.front(), memory);
    const double last = carry(*net, socket, sends, comms.back(), memory);
    if (!sends)
      std::printf("%5zu connections: %.2f M messages/s over the first, %.2f over the last\n", count,
                  first * 1e-6, last * 1e-6);
  }
  meet(socket);
  const Phase closing("close");
  for (void* comm : comms) sends ? net->close_send(comm) : net->close_receive(comm);
  meet(socket);
  if (!sends) closing.show(count);
  net->finalize();
}

void run_processes(const char* plugin, size_t count) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) throw ToolError("no sockets");
  const pid_t child = fork();
  if (child == 0) {
    close(sockets[0]);
    try {
      run_process(plugin, count, sockets[1], true);
      std::exit(kExitOk);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "connection_crowd: sender: %s\n", error.what());
      std::exit(kExitFailed);
    }
  }
  close(sockets[1]);
  run_process(plugin, count, sockets[0], false);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) throw ToolError("the sending process failed");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc == 4 ? argv[3] : "";
  if (argc < 3 || argc > 4 || (argc == 4 && mode != "rates" && mode != "processes")) {
    std::fprintf(stderr, "usage: %s PLUGIN CONNECTIONS [rates | processes]\n", argv[0]);
    return kExitFailed;
  }
  try {
    if (mode == "processes") {
      run_processes(argv[1], std::stoul(argv[2]));
    } else {
      run_all(argv[1], std::stoul(argv[2]), mode == "rates");
    }
    return kExitOk;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "connection_crowd: %s\n", error.what());
    return kExitFailed;
  }
}
