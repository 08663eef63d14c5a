#include "common/net_plugin.h"

#include <dlfcn.h>

#include "common/net_adapter.h"

namespace verbena::tools {
namespace {

template <typename Net, int kVersion>
std::unique_ptr<NetPlugin> make_adapter(const void* table) {
  return std::make_unique<NetAdapter<Net, kVersion>>(*static_cast<const Net*>(table));
}

}  // namespace

PluginLibrary::PluginLibrary(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) throw ToolError(std::string("cannot load the plugin: ") + dlerror());
}

PluginLibrary::~PluginLibrary() {
  dlclose(handle_);
}

const void* PluginLibrary::find_table(int abi_version) const {
  const std::string symbol = "ncclNetPlugin_v" + std::to_string(abi_version);
  const void* const table = dlsym(handle_, symbol.c_str());
  if (table == nullptr) throw ToolError("the plugin does not export " + symbol);
  return table;
}

std::unique_ptr<NetPlugin> PluginLibrary::adapt(int abi_version) const {
  const void* const table = find_table(abi_version);
  switch (abi_version) {
    case 7:
      return make_adapter<abi::NetV7, 7>(table);
    case 8:
      return make_adapter<abi::NetV8, 8>(table);
    case 9:
      return make_adapter<abi::NetV9, 9>(table);
    case 10:
      return make_adapter<abi::NetV10, 10>(table);
    case 11:
      return make_adapter<abi::NetV11, 11>(table);
    case 12:
      return make_adapter<abi::NetV12, 12>(table);
    default:
      throw ToolError("no adapter for table version " + std::to_string(abi_version));
  }
}

const char* describe_result(abi::Result result) {
  switch (result) {
    case abi::kSuccess:
      return "ncclSuccess";
    case abi::kUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case abi::kSystemError:
      return "ncclSystemError";
    case abi::kInternalError:
      return "ncclInternalError";
    case abi::kInvalidArgument:
      return "ncclInvalidArgument";
    case abi::kInvalidUsage:
      return "ncclInvalidUsage";
    case abi::kRemoteError:
      return "ncclRemoteError";
    case abi::kInProgress:
      return "ncclInProgress";
    case abi::kTimeout:
      return "ncclTimeout";
  }
  return "a code that is not NCCL's";
}

void throw_failed_call(const char* call, abi::Result result) {
  throw ToolError(std::string(call) + " failed: " + describe_result(result) + " (" +
                  std::to_string(static_cast<int>(result)) + ")");
}

}  // namespace verbena::tools
