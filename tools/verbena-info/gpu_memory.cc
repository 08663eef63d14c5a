#include "verbena-info/gpu_memory.h"

#include <algorithm>

#include "verbs/library.h"

namespace verbena::tools::info {
namespace {

bool any_gpu_exports(const Json& gpus) {
  return std::any_of(gpus["devices"].begin(), gpus["devices"].end(),
                     [](const Json& gpu) { return gpu["dmabuf"].get<bool>(); });
}

Json make_answer(const char* path, const std::string& why, const std::string& remedy) {
  return {{"path", path}, {"why", why}, {"try", text_or_null(remedy)}};
}

// Why a device of hardware has no dma-buf, in the order in which its parts are asked.
std::string explain_missing_dmabuf(const verbs::Device& device) {
  return device.library().reg_dmabuf_mr == nullptr
             ? device.library().path() + " has no ibv_reg_dmabuf_mr: rdma-core 34 or newer has"
             : "the kernel's driver of this device refuses dma-buf: Linux 5.12 or newer with mlx5, bnxt_re, "
               "efa or irdma takes it";
}

constexpr const char* kLoadPeerMemory = "modprobe nvidia_peermem (part of NVIDIA's driver)";
constexpr const char* kOpenModules =
    "install the driver's open kernel modules (nvidia-open), which export dma-buf";

}  // namespace

Json explain_gpu_memory(const verbs::Device& device, const Json& gpus) {
  const bool has_gpus = !gpus["devices"].empty();
  if (device.is_softverbs()) {
    return make_answer("softverbs",
                       has_gpus ? "the software device copies GPU memory itself, through CUDA"
                                : "the software device copies GPU memory itself where there is a GPU",
                       "");
  }
  if (device.is_software())
    return make_answer("none", "a software device of the kernel reaches host memory only",
                       "use an RDMA card, or VERBENA_IBVERBS_LIB=softverbs");
  if (device.supports_dmabuf() && (!has_gpus || any_gpu_exports(gpus)))
    return make_answer("dma-buf", has_gpus ? "device and GPU driver both have it" : "the device has it", "");
  const std::string dmabuf =
      device.supports_dmabuf() ? "the GPU driver exports no dma-buf" : explain_missing_dmabuf(device);
  if (device.supports_gpu_pointers())
    return make_answer("peer memory", "nvidia_peermem is loaded; no dma-buf: " + dmabuf,
                       device.supports_dmabuf() ? kOpenModules : "");
  return make_answer("none", dmabuf + "; and nvidia_peermem is not loaded",
                     device.supports_dmabuf() ? kOpenModules : kLoadPeerMemory);
}

}  // namespace verbena::tools::info
