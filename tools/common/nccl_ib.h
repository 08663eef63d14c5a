#pragma once
#include <memory>
#include <string>

#include "common/net_plugin.h"

namespace verbena::tools {

// The newest net table that this release of NCCL knows, which is the one that its own transports are written
// in. `version` is what ncclGetVersion says, 22809 for 2.28.9. Throws ToolError for a release not known here.
int find_table_version(int version);

// NCCL's own transport over verbs, driven as a plugin: its table is a local symbol of libnccl, which NCCL's
// releases do not strip. Needs no GPU. Its libibverbs.so.1 is found by the loader. Stays loaded for good.
class NcclIbLibrary {
 public:
  // A path, or a name for the loader.
  explicit NcclIbLibrary(const std::string& path);

  std::unique_ptr<NetPlugin> adapt() const;
  const std::string& release() const { return release_; }

 private:
  void* handle_;
  std::string release_;
  int table_version_ = 0;
};

}  // namespace verbena::tools
