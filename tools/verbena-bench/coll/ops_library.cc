#include "verbena-bench/coll/ops_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "common/error.h"
#include "common/self_path.h"

namespace verbena::tools::coll {

OpsLibrary load_ops_library(const std::string& path) {
  constexpr const char* kName = "libverbena_ops.so";
  std::vector<std::string> places = {path};
  if (path.empty()) {
    const std::filesystem::path folder = find_self_executable().parent_path();
    places = {(folder / "../lib" / kName).string(), (folder / kName).string(), kName};
  }
  void* library = nullptr;
  std::string why;
  for (const std::string& place : places) {
    library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    why += std::string("\n  ") + dlerror();
  }
  if (library == nullptr)
    throw ToolError(
        "libverbena_ops.so cannot be loaded. Build the target verbena_ops, or give the path of the library "
        "with --library:" +
        why);
  OpsLibrary ops;
#define VERBENA_COLL_FIND(name)                                           \
  ops.name = reinterpret_cast<decltype(ops.name)>(dlsym(library, #name)); \
  if (ops.name == nullptr) throw ToolError("libverbena_ops.so has no " #name);
  VERBENA_COLL_OPS(VERBENA_COLL_FIND)
#undef VERBENA_COLL_FIND
  return ops;
}

void check(verbena_result result, const char* call) {
  if (result == VERBENA_SUCCESS) return;
  const std::string text = verbena_last_error();
  throw ToolError(std::string(call) + ": " + (text.empty() ? verbena_describe(result) : text));
}

}  // namespace verbena::tools::coll
