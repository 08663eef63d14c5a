#include "base/cuda_api.h"

#include <dlfcn.h>

#include <optional>

#include "base/log.h"

namespace verbena::base {
namespace {

std::optional<CudaApi> load_cuda() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  CudaApi cuda;
  const char* missing = nullptr;
#define VERBENA_TRY(name) cuda.VERBENA_CUDA_FIND(name)
#define VERBENA_NEED(name) \
  VERBENA_TRY(name)        \
  if (cuda.name == nullptr) missing = #name;
  VERBENA_CUDA_FUNCTIONS(VERBENA_NEED)
  VERBENA_OPTIONAL_CUDA_FUNCTIONS(VERBENA_TRY)
  VERBENA_MAPPING_CUDA_FUNCTIONS(VERBENA_TRY)
#undef VERBENA_NEED
#undef VERBENA_TRY
  if (missing == nullptr) return cuda;
  log_warn("cuda: GPUs are not used, because libcuda.so.1 has no function %s. Install a newer driver",
           missing);
  return std::nullopt;
}

}  // namespace

bool CudaApi::can_map() const {
  bool has_all = true;
#define VERBENA_CHECK(name) has_all = has_all && name != nullptr;
  VERBENA_MAPPING_CUDA_FUNCTIONS(VERBENA_CHECK)
#undef VERBENA_CHECK
  return has_all;
}

const CudaApi* find_cuda() {
  static const std::optional<CudaApi> cuda = load_cuda();
  return cuda ? &*cuda : nullptr;
}

const char* describe_cuda(CUresult result) {
  const char* text = nullptr;
  const CudaApi* cuda = find_cuda();
  if (cuda == nullptr || cuda->cuGetErrorString(result, &text) != CUDA_SUCCESS) return "unknown CUDA error";
  return text;
}

RelaxedCapture::RelaxedCapture(const CudaApi& cuda) : cuda_(cuda) {
  cuda_.cuThreadExchangeStreamCaptureMode(&mode_);
}

RelaxedCapture::~RelaxedCapture() {
  cuda_.cuThreadExchangeStreamCaptureMode(&mode_);
}

OwningContext::OwningContext(const CudaApi& cuda, CUdeviceptr address) : cuda_(cuda) {
  CUcontext context = nullptr;
  if (cuda_.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) != CUDA_SUCCESS) return;
  pushed_ = context != nullptr && cuda_.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

OwningContext::~OwningContext() {
  CUcontext popped = nullptr;
  if (pushed_) cuda_.cuCtxPopCurrent_v2(&popped);
}

}  // namespace verbena::base
