#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "common/net_plugin.h"

namespace verbena::tools {

// The newest net table version of this release of NCCL, which its own transports use. `version` is that of
// ncclGetVersion: 22809 for 2.28.9. Throws ToolError for an unknown release.
int find_table_version(int version);

// NCCL's own transport over verbs, driven as a plugin: its table is a local symbol of libnccl, which NCCL's
// releases do not strip. It needs no GPU. The loader finds its libibverbs.so.1. The library stays loaded.
class NcclIbLibrary {
 public:
  // `path` is a path, or a library name that the loader searches.
  explicit NcclIbLibrary(const std::string& path);

  std::unique_ptr<NetPlugin> adapt() const;
  const std::string& release() const { return release_; }

 private:
  void* handle_;
  std::string release_;
  int table_version_ = 0;
};

// A defined data object of a shared object, exported or not.
struct ElfSymbol {
  uint64_t address = 0;  // before relocation: add the load address of the object
  uint64_t size_bytes = 0;
};

// Reads .symtab, which a stripped file lacks. Throws ToolError with the file and what is missing.
ElfSymbol find_data_symbol(const std::string& path, const std::string& name);

}  // namespace verbena::tools
