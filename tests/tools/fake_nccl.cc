// libnccl.so.2 for tests: collectives between processes through a shared file, on host memory, at once.
// FAKE_NCCL_FAULT, for rank 1 in its tenth operation: "wrong" spoils an element, "hang" never returns,
// "crash" dies; "wrong-split" spoils one of a communicator that ncclCommSplit made.
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "common/nccl_library.h"

#define EXPORT extern "C" [[gnu::visibility("default")]]

namespace {

using verbena::tools::CUstream;
using namespace verbena::tools::nccl;

constexpr size_t kAreaBytes = 4 << 20;  // what one rank can send in one operation
constexpr int kMaxRanks = 8;
constexpr NcclStatus kSystemError = 2;
constexpr int kFaultyOperation = 10;

struct Shared {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
  char areas[kMaxRanks][kAreaBytes];
};

struct Comm {
  Shared* shared = nullptr;
  std::string path;
  uint32_t ranks = 0;
  uint32_t rank = 0;
  int operations = 0;
  int splits = 0;
  bool is_split = false;
};

struct PeerCopy {
  Comm* comm;
  const void* send;
  void* receive;
  size_t bytes;
  uint32_t peer;
};
thread_local std::vector<PeerCopy> group;

bool has_fault(const Comm& comm, std::string_view name) {
  const char* const fault = std::getenv("FAKE_NCCL_FAULT");
  return fault != nullptr && name == fault && comm.rank == 1 && comm.operations == kFaultyOperation;
}

void meet(const Comm& comm) {
  const uint32_t generation = comm.shared->generation.load();
  if (comm.shared->arrived.fetch_add(1) + 1 == comm.ranks) {
    comm.shared->arrived.store(0);
    comm.shared->generation.store(generation + 1);
    return;
  }
  while (comm.shared->generation.load() == generation) sched_yield();
}

const uint32_t* read_area(const Comm& comm, uint32_t rank) {
  return reinterpret_cast<const uint32_t*>(comm.shared->areas[rank]);
}

// What precedes an operation in its stream.
void wait_for(CUstream stream) {
  static const auto wait =
      reinterpret_cast<int (*)(CUstream)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamSynchronize"));
  wait(stream);
}

template <typename Compute>
NcclStatus run(Comm* comm, CUstream stream, const void* send, size_t send_elements, void* receive,
               Compute compute) {
  wait_for(stream);
  ++comm->operations;
  if (has_fault(*comm, "crash")) raise(SIGKILL);
  while (has_fault(*comm, "hang")) pause();
  std::memcpy(comm->shared->areas[comm->rank], send, send_elements * sizeof(uint32_t));
  meet(*comm);
  auto* const out = static_cast<uint32_t*>(receive);
  compute(out);
  if (has_fault(*comm, comm->is_split ? "wrong-split" : "wrong")) ++out[0];
  meet(*comm);
  return kNcclSuccess;
}

uint32_t sum_at(const Comm& comm, size_t index) {
  uint32_t sum = 0;
  for (uint32_t rank = 0; rank < comm.ranks; ++rank) sum += read_area(comm, rank)[index];
  return sum;
}

Comm* as_comm(NcclComm comm) {
  return reinterpret_cast<Comm*>(comm);
}

void log_line(const char* text, const char* argument) {
  const char* const path = std::getenv("NCCL_DEBUG_FILE");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  std::fprintf(file, "host:1:2 [0] NCCL INFO ");
  std::fprintf(file, text, argument);
  std::fprintf(file, "\n");
  std::fclose(file);
}

}  // namespace

EXPORT NcclStatus ncclGetVersion(int* version) {
  *version = 22809;
  return kNcclSuccess;
}
EXPORT NcclStatus ncclGetUniqueId(NcclUniqueId* id) {
  std::snprintf(id->bytes.data(), id->bytes.size(), "/dev/shm/verbena-fake-nccl-%d", getpid());
  return kNcclSuccess;
}

EXPORT NcclStatus ncclCommInitRank(NcclComm* comm, int ranks, NcclUniqueId id, int rank) {
  const int descriptor = open(id.bytes.data(), O_RDWR | O_CREAT, 0600);
  if (descriptor < 0 || ftruncate(descriptor, sizeof(Shared)) != 0) return kSystemError;
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (memory == MAP_FAILED) return kSystemError;
  auto* const made = new Comm{static_cast<Shared*>(memory), id.bytes.data(), static_cast<uint32_t>(ranks),
                              static_cast<uint32_t>(rank)};
  meet(*made);
  unlink(id.bytes.data());
  *comm = reinterpret_cast<NcclComm>(made);
  const char* const network = std::getenv("NCCL_NET");
  log_line("Assigned NET plugin %s to comm", network != nullptr ? network : "Fake");
  log_line("Using network %s", network != nullptr ? network : "Fake");
  log_line("%s coll channels, 4 collnet channels, 0 nvls channels, 8 p2p channels", "4");
  return kNcclSuccess;
}
// All ranks stay together.
EXPORT NcclStatus ncclCommSplit(NcclComm comm, int, int key, NcclComm* made, void*) {
  const Comm& whole = *as_comm(comm);
  NcclUniqueId id{};
  std::snprintf(id.bytes.data(), id.bytes.size(), "%s-%d", whole.path.c_str(), ++as_comm(comm)->splits);
  meet(whole);
  const NcclStatus status = ncclCommInitRank(made, static_cast<int>(whole.ranks), id, key);
  if (status == kNcclSuccess) as_comm(*made)->is_split = true;
  return status;
}
EXPORT NcclStatus ncclCommDestroy(NcclComm comm) {
  log_line("verbena: %s: 12 messages staged, 3 direct", "counters");
  munmap(as_comm(comm)->shared, sizeof(Shared));
  delete as_comm(comm);
  return kNcclSuccess;
}
EXPORT NcclStatus ncclCommGetAsyncError(NcclComm, NcclStatus* error) {
  *error = kNcclSuccess;
  return kNcclSuccess;
}
EXPORT const char* ncclGetErrorString(NcclStatus) {
  return "fake error";
}
EXPORT const char* ncclGetLastError(NcclComm) {
  return "";
}

EXPORT NcclStatus ncclAllReduce(const void* send, void* receive, size_t count, int, int, NcclComm comm,
                                CUstream stream) {
  return run(as_comm(comm), stream, send, count, receive, [&](uint32_t* out) {
    for (size_t index = 0; index < count; ++index) out[index] = sum_at(*as_comm(comm), index);
  });
}
EXPORT NcclStatus ncclReduceScatter(const void* send, void* receive, size_t count, int, int, NcclComm comm,
                                    CUstream stream) {
  const Comm& own = *as_comm(comm);
  return run(as_comm(comm), stream, send, count * own.ranks, receive, [&](uint32_t* out) {
    for (size_t index = 0; index < count; ++index) out[index] = sum_at(own, own.rank * count + index);
  });
}
EXPORT NcclStatus ncclAllGather(const void* send, void* receive, size_t count, int, NcclComm comm,
                                CUstream stream) {
  const Comm& own = *as_comm(comm);
  return run(as_comm(comm), stream, send, count, receive, [&](uint32_t* out) {
    for (uint32_t rank = 0; rank < own.ranks; ++rank) {
      std::memcpy(out + rank * count, read_area(own, rank), count * sizeof(uint32_t));
    }
  });
}
EXPORT NcclStatus ncclBroadcast(const void* send, void* receive, size_t count, int, int root, NcclComm comm,
                                CUstream stream) {
  return run(as_comm(comm), stream, send, count, receive, [&](uint32_t* out) {
    std::memcpy(out, read_area(*as_comm(comm), static_cast<uint32_t>(root)), count * sizeof(uint32_t));
  });
}
EXPORT NcclStatus ncclSend(const void* data, size_t count, int, int peer, NcclComm comm, CUstream stream) {
  wait_for(stream);
  group.push_back({as_comm(comm), data, nullptr, count * sizeof(uint32_t), static_cast<uint32_t>(peer)});
  return kNcclSuccess;
}
EXPORT NcclStatus ncclRecv(void* data, size_t count, int, int peer, NcclComm comm, CUstream stream) {
  wait_for(stream);
  group.push_back({as_comm(comm), nullptr, data, count * sizeof(uint32_t), static_cast<uint32_t>(peer)});
  return kNcclSuccess;
}
EXPORT NcclStatus ncclGroupStart() {
  return kNcclSuccess;
}

// Each sender's area is divided among the receivers.
EXPORT NcclStatus ncclGroupEnd() {
  Comm& comm = *group.front().comm;
  const size_t part_bytes = kAreaBytes / comm.ranks;
  for (const PeerCopy& copy : group) {
    if (copy.send != nullptr)
      std::memcpy(comm.shared->areas[comm.rank] + copy.peer * part_bytes, copy.send, copy.bytes);
  }
  meet(comm);
  for (const PeerCopy& copy : group) {
    if (copy.receive == nullptr) continue;
    std::memcpy(copy.receive, comm.shared->areas[copy.peer] + comm.rank * part_bytes, copy.bytes);
  }
  meet(comm);
  group.clear();
  return kNcclSuccess;
}
