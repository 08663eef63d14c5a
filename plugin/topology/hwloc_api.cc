#include "topology/hwloc_api.h"

#include <dlfcn.h>

#include <optional>

#include "base/log.h"

namespace verbena::topology {
namespace {

// The name stands for the ABI of hwloc 2.
constexpr char kLibrary[] = "libhwloc.so.15";

std::optional<HwlocApi> load_hwloc() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    base::log_info("topology: the distances between devices are unknown, because %s was not found", kLibrary);
    return std::nullopt;
  }
  HwlocApi api;
  const char* missing = nullptr;
#define VERBENA_LOAD(name)                                                         \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, "hwloc_" #name)); \
  if (api.name == nullptr) missing = "hwloc_" #name;
  VERBENA_HWLOC_FUNCTIONS(VERBENA_LOAD)
#undef VERBENA_LOAD
  if (missing == nullptr) return api;
  base::log_info("topology: the distances between devices are unknown, because %s has no function %s",
                 kLibrary, missing);
  return std::nullopt;
}

}  // namespace

const HwlocApi* find_hwloc() {
  static const std::optional<HwlocApi> api = load_hwloc();
  return api ? &*api : nullptr;
}

}  // namespace verbena::topology
