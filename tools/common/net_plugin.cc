#include "common/net_plugin.h"

#include <dlfcn.h>
#include <link.h>

#include "common/net_adapter.h"

namespace verbena::tools {
namespace {

// Calls `use` with a TableType of the version.
template <typename Net, int kNetVersion>
struct TableType {
  using Table = Net;
  static constexpr int kVersion = kNetVersion;
};

template <typename Use>
auto with_table_type(int abi_version, Use use) {
  switch (abi_version) {
    case 7:
      return use(TableType<abi::NetV7, 7>());
    case 8:
      return use(TableType<abi::NetV8, 8>());
    case 9:
      return use(TableType<abi::NetV9, 9>());
    case 10:
      return use(TableType<abi::NetV10, 10>());
    case 11:
      return use(TableType<abi::NetV11, 11>());
    case 12:
      return use(TableType<abi::NetV12, 12>());
    default:
      throw ToolError("no adapter for table version " + std::to_string(abi_version));
  }
}

}  // namespace

std::unique_ptr<NetPlugin> adapt_table(const void* table, int abi_version) {
  return with_table_type(abi_version, [table](auto type) -> std::unique_ptr<NetPlugin> {
    using Net = typename decltype(type)::Table;
    return std::make_unique<NetAdapter<Net, type.kVersion>>(*static_cast<const Net*>(table));
  });
}

size_t size_of_table(int abi_version) {
  return with_table_type(abi_version, [](auto type) { return sizeof(typename decltype(type)::Table); });
}

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

std::vector<int> PluginLibrary::list_versions(const std::string& prefix) const {
  constexpr int kNewestThinkable = 40;
  std::vector<int> versions;
  for (int version = 1; version <= kNewestThinkable; ++version) {
    if (dlsym(handle_, (prefix + std::to_string(version)).c_str()) != nullptr) versions.push_back(version);
  }
  return versions;
}

std::string PluginLibrary::find_path() const {
  const link_map* map = nullptr;
  return dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : "";
}

std::unique_ptr<NetPlugin> PluginLibrary::adapt(int abi_version) const {
  return adapt_table(find_table(abi_version), abi_version);
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
