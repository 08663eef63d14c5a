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
#define VERBENA_LOAD(member, name, arguments)                                  \
  cuda.member = reinterpret_cast<decltype(cuda.member)>(dlsym(library, name)); \
  if (cuda.member == nullptr) missing = name;
  VERBENA_CUDA_FUNCTIONS(VERBENA_LOAD)
#undef VERBENA_LOAD
#define VERBENA_LOAD(member, name, arguments) \
  cuda.member = reinterpret_cast<decltype(cuda.member)>(dlsym(library, name));
  VERBENA_OPTIONAL_CUDA_FUNCTIONS(VERBENA_LOAD)
  VERBENA_MAPPING_CUDA_FUNCTIONS(VERBENA_LOAD)
#undef VERBENA_LOAD
  if (missing == nullptr) return cuda;
  log_warn("cuda: libcuda.so.1: too old, GPUs are not used: no %s", missing);
  return std::nullopt;
}

}  // namespace

bool CudaApi::can_map() const {
  bool has_all = true;
#define VERBENA_CHECK(member, name, arguments) has_all = has_all && member != nullptr;
  VERBENA_MAPPING_CUDA_FUNCTIONS(VERBENA_CHECK)
#undef VERBENA_CHECK
  return has_all;
}

const CudaApi* find_cuda() {
  static const std::optional<CudaApi> cuda = load_cuda();
  return cuda ? &*cuda : nullptr;
}

const char* describe_cuda(CudaResult result) {
  const char* text = nullptr;
  const CudaApi* cuda = find_cuda();
  if (cuda == nullptr || cuda->get_error_string(result, &text) != kCudaSuccess) return "unknown CUDA error";
  return text;
}

RelaxedCapture::RelaxedCapture(const CudaApi& cuda) : cuda_(cuda) {
  cuda_.exchange_capture_mode(&mode_);
}

RelaxedCapture::~RelaxedCapture() {
  cuda_.exchange_capture_mode(&mode_);
}

OwningContext::OwningContext(const CudaApi& cuda, CudaAddress address) : cuda_(cuda) {
  CudaContext context = nullptr;
  if (cuda_.get_pointer_attribute(&context, kCudaPointerContext, address) != kCudaSuccess) return;
  pushed_ = context != nullptr && cuda_.push_context(context) == kCudaSuccess;
}

OwningContext::~OwningContext() {
  CudaContext popped = nullptr;
  if (pushed_) cuda_.pop_context(&popped);
}

}  // namespace verbena::base
