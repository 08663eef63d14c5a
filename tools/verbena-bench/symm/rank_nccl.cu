// Ranks of verbena-bench-symm-nccl: a communicator of NCCL, and a context over it.
#include <dlfcn.h>
#include <nccl.h>

#include "verbena-bench/symm/rank.cuh"
#include "verbena-bench/symm/session.h"
#include "verbena/backends.h"
#include "verbena/device/backends/nccl.cuh"

namespace verbena::tools::symm {
namespace {

// NCCL, from $NCCL_LIB or the loader's path.
class Nccl {
 public:
  Nccl() {
    const char* const named = std::getenv("NCCL_LIB");
    library_ = dlopen(named != nullptr && *named != '\0' ? named : "libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
  }
  template <typename Function>
  Function* find(const char* name) const {
    auto* const found = reinterpret_cast<Function*>(dlsym(library_, name));
    if (found == nullptr) throw std::runtime_error(std::string("libnccl.so.2 has no ") + name);
    return found;
  }
  template <typename Function, typename... Arguments>
  void call(const char* name, const Arguments&... arguments) const {
    if (find<Function>(name)(arguments...) == ncclSuccess) return;
    throw std::runtime_error(std::string(name) + ": " +
                             find<decltype(ncclGetLastError)>("ncclGetLastError")(nullptr));
  }

 private:
  void* library_ = nullptr;
};

class NcclSession {
 public:
  using Context = NcclSymmContext;

  explicit NcclSession(const SymmPlan& plan)
      : meeting_(plan), communicator_(nccl_, meeting_), context_(make_context()) {}
  SymmetricContext& context() { return context_; }

 private:
  // Outlives the context.
  class Communicator {
   public:
    Communicator(const Nccl& nccl, Meeting& meeting) : nccl_(nccl) {
      ncclUniqueId id{};
      if (meeting.rank() == 0) nccl.call<decltype(ncclGetUniqueId)>("ncclGetUniqueId", &id);
      std::vector<ncclUniqueId> all(meeting.size());
      meeting.gather(&id, all.data(), sizeof(id));
      nccl.call<decltype(ncclCommInitRank)>("ncclCommInitRank", &handle_, static_cast<int>(meeting.size()),
                                            all.front(), static_cast<int>(meeting.rank()));
    }
    ~Communicator() { nccl_.find<decltype(ncclCommDestroy)>("ncclCommDestroy")(handle_); }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    ncclComm_t handle() const { return handle_; }

   private:
    const Nccl& nccl_;
    ncclComm_t handle_ = nullptr;
  };

  SymmetricContext make_context() const {
    verbena_context* context = nullptr;
    verbena::check(verbena_nccl_context_create(communicator_.handle(), kHeapBytes, &context));
    return SymmetricContext(context);
  }

  Nccl nccl_;
  Meeting meeting_;
  Communicator communicator_;
  SymmetricContext context_;
};

}  // namespace

void run_rank(const SymmPlan& plan) {
  run_session<NcclSession>(plan);
}

}  // namespace verbena::tools::symm
