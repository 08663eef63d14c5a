#include "common/net_plugin.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <iterator>

#include "common/net_adapter.h"

namespace verbena::tools {
namespace {

// Calls `use` with the TableVersion.
template <typename Use>
auto with_version(int abi_version, Use use) {
  switch (abi_version) {
    case 7:
      return use(TableVersion<7, abi::ncclNet_v7_t>());
    case 8:
      return use(TableVersion<8, abi::ncclNet_v8_t>());
    case 9:
      return use(TableVersion<9, abi::ncclNet_v9_t>());
    case 10:
      return use(TableVersion<10, abi::ncclNet_v10_t>());
    case 11:
      return use(TableVersion<11, abi::ncclNet_v11_t>());
    case 12:
      return use(TableVersion<12, abi::ncclNet_v12_t>());
    default:
      throw ToolError("no adapter for table version " + std::to_string(abi_version));
  }
}

const char* describe_result(abi::Result result) {
  static constexpr const char* kNames[] = {"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                                           "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                                           "ncclRemoteError",   "ncclInProgress",         "ncclTimeout"};
  static_assert(std::size(kNames) == abi::kTimeout + 1);
  const auto number = static_cast<size_t>(result);
  return number < std::size(kNames) ? kNames[number] : "a result code that NCCL does not define";
}

}  // namespace

std::unique_ptr<NetPlugin> adapt_table(const void* table, int abi_version) {
  return with_version(abi_version, [table](auto version) -> std::unique_ptr<NetPlugin> {
    using Version = decltype(version);
    return std::make_unique<NetAdapter<Version>>(*static_cast<const typename Version::Table*>(table));
  });
}

size_t size_of_table(int abi_version) {
  return with_version(abi_version, [](auto version) { return sizeof(typename decltype(version)::Table); });
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

CallError::CallError(const char* call, abi::Result code)
    : ToolError(std::string(call) + " failed: " + describe_result(code) + " (" +
                std::to_string(static_cast<int>(code)) + ")"),
      code_(code) {}

std::string format_plugin_text(const char* format, va_list arguments) {
  char text[2048];
  return std::vsnprintf(text, sizeof text, format, arguments) < 0 ? format : text;
}

}  // namespace verbena::tools
