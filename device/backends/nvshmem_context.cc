// libverbena_nvshmem.so: creates contexts over NVSHMEM's symmetric heap. It does not need NVSHMEM's headers,
// because it declares the functions itself, as NVSHMEM 3 documents them.
#include <algorithm>

#include "device/backends/cuda_calls.h"
#include "device/backends/process_library.h"
#include "device/backends/shared_heap.h"

namespace verbena::backends {
namespace {

constexpr int kTeamWorld = 0;
constexpr unsigned kInitWithUniqueId = 1u << 3;
constexpr int kIsInitialized = 2;  // lowest value of nvshmemx_init_status() after initialisation

// The version field of an NVSHMEM structure.
template <typename T>
constexpr int kVersionOf = (1 << 16) + static_cast<int>(sizeof(T));

struct UniqueId {
  int version;
  char content[124];
};
struct UniqueIdArguments {
  int version;
  UniqueId* id;
  int rank, count_ranks;
};
struct InitArguments {
  int version;
  UniqueIdArguments unique_id;
  char content[96];
};
struct InitAttributes {
  int version;
  void* mpi_communicator;
  InitArguments arguments;
};
static_assert(sizeof(UniqueId) == 128 && sizeof(UniqueIdArguments) == 24 && sizeof(InitArguments) == 128 &&
              sizeof(InitAttributes) == 144);

struct Nvshmem {
  ProcessLibrary library{"libnvshmem_host.so.3"};
  using GetId = int(UniqueId*);
  using Init = int(unsigned, InitAttributes*);
  using GetNumber = int();
  using Align = void*(size_t, size_t);
  using Free = void(void*);
  using FindPeer = void*(const void*, int);
  using Collect = int(int, void*, const void*, size_t);
  using InitModule = int(void*);
  GetId* get_unique_id = library.find<GetId>("nvshmemx_get_uniqueid");
  Init* init = library.find<Init>("nvshmemx_hostlib_init_attr");
  GetNumber* init_status = library.find<GetNumber>("nvshmemx_init_status");
  GetNumber* my_pe = library.find<GetNumber>("nvshmem_my_pe");
  GetNumber* count_pes = library.find<GetNumber>("nvshmem_n_pes");
  Align* allocate = library.find<Align>("nvshmem_align");
  Free* free = library.find<Free>("nvshmem_free");
  FindPeer* find_peer = library.find<FindPeer>("nvshmem_ptr");
  Collect* collect = library.find<Collect>("nvshmem_fcollectmem");
  InitModule* init_module = library.find<InitModule>("nvshmemx_cumodule_init");

  static const Nvshmem& instance() {
    static const Nvshmem nvshmem;
    return nvshmem;
  }
  bool is_initialized() const { return init_status() >= kIsInitialized; }
  void expect_initialized() const {
    if (!is_initialized()) {
      throw Failure(VERBENA_INVALID_USAGE,
                    "NVSHMEM is not initialised. Call nvshmemx_init_attr() or verbena_nvshmem_init() first");
    }
  }
};

// Allocations are collective: if one PE has too little memory, the call fails on all PEs.
class NvshmemMemory {
 public:
  explicit NvshmemMemory(const Nvshmem& nvshmem) : nvshmem_(nvshmem) {}
  ~NvshmemMemory() { free(); }
  NvshmemMemory(const NvshmemMemory&) = delete;
  NvshmemMemory& operator=(const NvshmemMemory&) = delete;

  void allocate(size_t length_bytes) {
    free();
    memory_ = static_cast<char*>(nvshmem_.allocate(512, length_bytes));
    if (memory_ == nullptr) {
      throw Failure(VERBENA_SYSTEM_ERROR, "nvshmem_align: cannot allocate " + std::to_string(length_bytes) +
                                              " bytes in NVSHMEM's heap. Raise NVSHMEM_SYMMETRIC_SIZE");
    }
    length_bytes_ = length_bytes;
  }
  char* begin() const { return memory_; }
  size_t length_bytes() const { return length_bytes_; }

 private:
  void free() {
    if (memory_ != nullptr) nvshmem_.free(memory_);
    memory_ = nullptr;
    length_bytes_ = 0;
  }
  const Nvshmem& nvshmem_;
  char* memory_ = nullptr;
  size_t length_bytes_ = 0;
};

class NvshmemHeap : public SharedHeap {
 public:
  explicit NvshmemHeap(const Nvshmem& nvshmem)
      : SharedHeap(kSymmNvshmem, static_cast<uint32_t>(nvshmem.my_pe()),
                   static_cast<uint32_t>(nvshmem.count_pes())),
        nvshmem_(nvshmem),
        memory_(nvshmem),
        staging_(nvshmem) {}

  void gather(const void* mine, void* all, size_t bytes_each) override;
  // Allocates the heap. Collective.
  void allocate(size_t window_bytes, bool uses_loads_and_stores);

 private:
  const Nvshmem& nvshmem_;
  NvshmemMemory memory_, staging_;
};

void NvshmemHeap::gather(const void* mine, void* all, size_t bytes_each) {
  const size_t all_bytes = bytes_each * count_ranks();
  if (all_bytes + bytes_each > staging_.length_bytes())
    staging_.allocate(std::max(all_bytes + bytes_each, size_t{64} << 10));
  char* const given = staging_.begin() + all_bytes;
  CHECK_CUDA(cudaMemcpy(given, mine, bytes_each, cudaMemcpyHostToDevice));
  if (nvshmem_.collect(kTeamWorld, staging_.begin(), given, bytes_each) != 0)
    throw Failure(VERBENA_REMOTE_ERROR, "nvshmem_fcollectmem failed");
  CHECK_CUDA(cudaMemcpy(all, staging_.begin(), all_bytes, cudaMemcpyDeviceToHost));
}

void NvshmemHeap::allocate(size_t window_bytes, bool uses_loads_and_stores) {
  memory_.allocate(measure(window_bytes));
  begin_ = memory_.begin();
  length_bytes_ = memory_.length_bytes();
  for (uint32_t pe = 0; pe < count_ranks(); ++pe) {
    const bool is_own = pe == rank();
    void* const theirs =
        is_own || uses_loads_and_stores ? nvshmem_.find_peer(begin_, static_cast<int>(pe)) : nullptr;
    if (theirs != nullptr) set_peer(pe, begin_, theirs);
  }
}

void init(verbena_all_gather all_gather, void* argument, uint32_t rank, uint32_t count_ranks) {
  const Nvshmem& nvshmem = Nvshmem::instance();
  if (nvshmem.is_initialized()) return;
  UniqueId mine{};
  mine.version = kVersionOf<UniqueId>;
  if (rank == 0 && nvshmem.get_unique_id(&mine) != 0)
    mine.version = 0;  // so that all ranks detect the failure
  std::vector<UniqueId> all(count_ranks);
  if (all_gather(argument, &mine, all.data(), sizeof(mine)) != 0)
    throw Failure(VERBENA_REMOTE_ERROR, "the application's all-gather failed");
  if (all.front().version == 0) throw Failure(VERBENA_REMOTE_ERROR, "nvshmemx_get_uniqueid failed on rank 0");
  InitAttributes attributes{};
  attributes.version = kVersionOf<InitAttributes>;
  attributes.arguments.version = kVersionOf<InitArguments>;
  attributes.arguments.unique_id = {kVersionOf<UniqueIdArguments>, &all.front(), static_cast<int>(rank),
                                    static_cast<int>(count_ranks)};
  const int result = nvshmem.init(kInitWithUniqueId, &attributes);
  if (result != 0)
    throw Failure(VERBENA_SYSTEM_ERROR,
                  "nvshmemx_hostlib_init_attr failed with result " + std::to_string(result));
}

verbena_context* create_context(size_t window_bytes) {
  const Nvshmem& nvshmem = Nvshmem::instance();
  nvshmem.expect_initialized();
  auto heap = std::make_unique<NvshmemHeap>(nvshmem);
  heap->allocate(window_bytes, verbena_uses_loads_and_stores() != 0);
  return make_context(std::move(heap));
}

}  // namespace
}  // namespace verbena::backends

using namespace verbena::backends;

extern "C" {

verbena_result verbena_nvshmem_init(verbena_all_gather all_gather, void* argument, uint32_t rank,
                                    uint32_t count_ranks) {
  return guard([&] {
    if (all_gather == nullptr || rank >= count_ranks)
      throw verbena::Failure(
          VERBENA_INVALID_ARGUMENT,
          "the all-gather function is NULL, or the rank is not less than the number of ranks");
    init(all_gather, argument, rank, count_ranks);
  });
}

verbena_result verbena_nvshmem_context_create(size_t heap_bytes, verbena_context** context) {
  return guard([&] {
    if (context == nullptr) throw verbena::Failure(VERBENA_INVALID_ARGUMENT, "context is NULL");
    *context = create_context(heap_bytes);
  });
}

verbena_result verbena_nvshmem_prepare_module(void* module) {
  return guard([&] {
    const Nvshmem& nvshmem = Nvshmem::instance();
    nvshmem.expect_initialized();
    const int result = nvshmem.init_module(module);
    if (result != 0)
      throw verbena::Failure(VERBENA_SYSTEM_ERROR,
                             "nvshmemx_cumodule_init failed with result " + std::to_string(result));
  });
}

}  // extern "C"
