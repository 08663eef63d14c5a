// Ranks of verbena-bench-symm-nvshmem: PEs of NVSHMEM, and a context over its heap.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "verbena-bench/symm/rank.cuh"
#include "verbena-bench/symm/session.h"
#include "verbena/backends.h"
#include "verbena/device/backends/nvshmem.cuh"

namespace verbena::tools::symm {
namespace {

class NvshmemSession {
 public:
  using Context = NvshmemSymmContext;

  explicit NvshmemSession(const SymmPlan& plan)
      : meeting_(plan), library_(meeting_), context_(make_context()) {}
  SymmetricContext& context() { return context_; }

 private:
  // Initialises NVSHMEM, including the kernels of this program. Outlives the context.
  class Library {
   public:
    explicit Library(Meeting& meeting) {
      nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
      if (meeting.rank() == 0 && nvshmemx_get_uniqueid(&id) != 0)
        throw std::runtime_error("nvshmemx_get_uniqueid failed");
      std::vector<nvshmemx_uniqueid_t> all(meeting.size());
      meeting.gather(&id, all.data(), sizeof(id));
      nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
      nvshmemx_set_attr_uniqueid_args(static_cast<int>(meeting.rank()), static_cast<int>(meeting.size()),
                                      &all.front(), &attributes);
      if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) != 0)
        throw std::runtime_error("nvshmemx_init_attr failed");
    }
    ~Library() { nvshmem_finalize(); }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;
  };

  static SymmetricContext make_context() {
    verbena_context* context = nullptr;
    verbena::check(verbena_nvshmem_context_create(kHeapBytes, &context));
    return SymmetricContext(context);
  }

  Meeting meeting_;
  Library library_;
  SymmetricContext context_;
};

}  // namespace

void run_rank(const SymmPlan& plan) {
  run_session<NvshmemSession>(plan);
}

}  // namespace verbena::tools::symm
