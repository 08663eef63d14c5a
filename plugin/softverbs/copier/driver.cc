#include "softverbs/copier/driver.h"

#include <dlfcn.h>

namespace verbena::softverbs::copier {

bool Driver::load(const char* path, std::string& why) {
  void* library = dlopen(path, RTLD_NOW);
  if (library == nullptr) {
    why = std::string("cannot load CUDA's driver: ") + dlerror();
    return false;
  }
  bool has_mapping = true, has_kernel = true;
  const char* missing = nullptr;
#define COPIER_NEED(name) VERBENA_CUDA_FIND(name) if (name == nullptr) missing = #name;
#define COPIER_MAP(name) VERBENA_CUDA_FIND(name) has_mapping &= name != nullptr;
#define COPIER_RUN(name) VERBENA_CUDA_FIND(name) has_kernel &= name != nullptr;
#define COPIER_TRY(name) VERBENA_CUDA_FIND(name)
  COPIER_CUDA_NEEDED(COPIER_NEED)
  COPIER_CUDA_MAPPING(COPIER_MAP)
  COPIER_CUDA_KERNEL(COPIER_RUN)
  COPIER_CUDA_OPTIONAL(COPIER_TRY)
#undef COPIER_NEED
#undef COPIER_MAP
#undef COPIER_RUN
#undef COPIER_TRY
  if (!has_mapping) cuMemImportFromShareableHandle = nullptr;
  if (!has_kernel) cuLaunchKernel = nullptr;
  if (missing != nullptr) {
    why = std::string("CUDA's driver has no ") + missing;
    return false;
  }
  const CUresult result = cuInit(0);
  if (result != CUDA_SUCCESS) why = explain("cuInit", result);
  return result == CUDA_SUCCESS;
}

std::string Driver::explain(const char* call, CUresult result) const {
  const char* name = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown error";
  return std::string(call) + ": " + name;
}

}  // namespace verbena::softverbs::copier
