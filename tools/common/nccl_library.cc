#include "common/nccl_library.h"

#include <dlfcn.h>

#include "common/error.h"

namespace verbena::tools::nccl {

NcclLibrary load_nccl(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw ToolError(std::string("cannot load NCCL: ") + dlerror());
  NcclLibrary nccl;
#define VERBENA_FIND(member, name, result, parameters)                         \
  nccl.member = reinterpret_cast<decltype(nccl.member)>(dlsym(library, name)); \
  if (nccl.member == nullptr) throw ToolError(path + " lacks " name);
  VERBENA_TOOLS_NCCL(VERBENA_FIND)
#undef VERBENA_FIND
  return nccl;
}

void NcclLibrary::check(NcclStatus status, const char* call) const {
  if (status == kNcclSuccess) return;
  const char* const words = get_last_error(nullptr);
  std::string text =
      std::string(call) + " failed: " + get_error_string(status) + " (" + std::to_string(status) + ")";
  if (words != nullptr && words[0] != '\0') text += std::string(": ") + words;
  throw ToolError(text);
}

std::string format_nccl_version(int version) {
  // The major version counts 10000 in NCCL 2.9 and later, 1000 in older releases.
  const int major_unit = version >= 10000 ? 10000 : 1000;
  return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / 100) + "." +
         std::to_string(version % 100);
}

}  // namespace verbena::tools::nccl
