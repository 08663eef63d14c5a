#include "common/nccl_ib.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>

#include "common/elf_symbol.h"
#include "common/error.h"

namespace verbena::tools {
namespace {

constexpr const char* kTableSymbol = "ncclNetIb";
// The first member of every table is the transport's name.
constexpr const char* kTransportName = "IB";

struct KnownReleases {
  int first_minor, last_minor;  // of NCCL 2
  int table_version;
};
constexpr KnownReleases kKnownReleases[] = {{19, 19, 7},  {20, 23, 8},  {24, 25, 9},
                                            {26, 27, 10}, {28, 29, 11}, {30, 30, 12}};

std::string format_release(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

const link_map& find_link_map(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) throw ToolError(std::string("dlinfo: ") + dlerror());
  return *map;
}

int read_version(void* handle) {
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(handle, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0)
    throw ToolError("ncclGetVersion is not there or fails");
  return version;
}

}  // namespace

int find_table_version(int version) {
  for (const KnownReleases& known : kKnownReleases) {
    const int minor = version / 100 % 100;
    if (version / 10000 == 2 && minor >= known.first_minor && minor <= known.last_minor)
      return known.table_version;
  }
  throw ToolError("NCCL " + format_release(version) +
                  ": the table of its own IB transport is known for 2.19 to 2.30 only");
}

// Stays loaded: threads that NCCL starts for asynchronous events never end.
NcclIbLibrary::NcclIbLibrary(const std::string& path)
    : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
  if (handle_ == nullptr) throw ToolError(std::string("cannot load NCCL: ") + dlerror());
  const int version = read_version(handle_);
  release_ = format_release(version);
  table_version_ = find_table_version(version);
}

std::unique_ptr<NetPlugin> NcclIbLibrary::adapt() const {
  const link_map& map = find_link_map(handle_);
  const ElfSymbol symbol = find_data_symbol(map.l_name, kTableSymbol);
  const size_t expected_bytes = size_of_table(table_version_);
  // Another layout than the release's own headers tell would be called into at random.
  if (symbol.size_bytes != expected_bytes) {
    throw ToolError("NCCL " + release_ + ": " + kTableSymbol + " has " + std::to_string(symbol.size_bytes) +
                    " bytes, a table v" + std::to_string(table_version_) + " has " +
                    std::to_string(expected_bytes));
  }
  const auto* const table = reinterpret_cast<const void*>(map.l_addr + symbol.address);
  const char* const name = *static_cast<const char* const*>(table);
  if (name == nullptr || std::strcmp(name, kTransportName) != 0) {
    throw ToolError("NCCL " + release_ + ": " + kTableSymbol +
                    " does not begin with the name of the IB transport");
  }
  return adapt_table(table, table_version_);
}

}  // namespace verbena::tools
