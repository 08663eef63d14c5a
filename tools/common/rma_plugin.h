// One interface to all versions of the tables of NCCL's device API in a plugin's library, called like NCCL's
// proxy does. Results are returned unchanged, because tests check them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nccl/rma_abi.h"

namespace verbena::tools {

// The first argument of the data functions: a communicator or a context, depending on the table.
struct RmaTarget {
  void* communicator = nullptr;
  void* context = nullptr;
  int index = 0;  // of the context
};

// The arguments of a put; for a get, the remote end comes first. A handle may be null if there are no bytes.
struct RmaCopy {
  uint64_t local_offset = 0;
  void* local = nullptr;
  size_t bytes = 0;
  uint64_t remote_offset = 0;
  void* remote = nullptr;
  uint32_t rank = 0;
  bool is_hinted = false;  // ignored by tables without such a hint
};
struct RmaAdd {
  uint64_t offset = 0;
  void* memory = nullptr;
  uint64_t value = 0;
  uint32_t op = abi::kSignalAdd;
  bool is_strong = true;
};

struct RmaRegistration {
  abi::Result result;
  void* mhandle = nullptr;
  void* gin_handle = nullptr;  // for tables that have a separate handle; else equal to mhandle
};

class RmaPlugin {
 public:
  virtual ~RmaPlugin() = default;

  virtual const char* symbol() const = 0;
  virtual const char* name() const = 0;
  virtual bool has_contexts() const = 0;  // and gets, and flushes
  virtual bool has_rank_stride() const = 0;

  virtual abi::Result init(void** context, uint64_t communicator, abi::DebugLogger logger) = 0;
  virtual abi::Result finalize(void* context) = 0;
  virtual abi::Result devices(int* count) = 0;
  virtual abi::Result get_properties(int device, abi::ncclNetProperties_v12_t* properties) = 0;
  virtual abi::Result listen(void* context, int device, void* handle, void** listen_comm) = 0;
  virtual abi::Result connect(void* context, void** handles, int count, int rank, void* listen_comm,
                              void** communicator) = 0;
  virtual abi::Result close_listen(void* listen_comm) = 0;
  virtual abi::Result create_context(void* communicator, int contexts, int rank_stride, void** context) = 0;
  virtual abi::Result destroy_context(void* context) = 0;
  virtual RmaRegistration register_memory(void* communicator, void* data, size_t bytes, int type) = 0;
  virtual RmaRegistration register_dmabuf(void* communicator, void* data, size_t bytes, int type,
                                          uint64_t offset, int fd) = 0;
  virtual abi::Result deregister(void* communicator, void* mhandle) = 0;
  virtual abi::Result close(void* communicator) = 0;

  virtual abi::Result put(const RmaTarget& target, const RmaCopy& copy, void** request) = 0;
  virtual abi::Result put_signal(const RmaTarget& target, const RmaCopy& copy, const RmaAdd& add,
                                 void** request) = 0;
  virtual abi::Result get(const RmaTarget& target, const RmaCopy& copy, void** request) = 0;
  virtual abi::Result flush(const RmaTarget& target, void* mhandle, uint32_t rank, void** request) = 0;
  virtual abi::Result test(const RmaTarget& target, void* request, int* done) = 0;
  virtual abi::Result progress(const RmaTarget& target) = 0;
  virtual abi::Result query_last_error(const RmaTarget& target, bool* has_error) = 0;
};

// The symbols that NCCL looks up, oldest first.
std::vector<std::string> list_rma_symbols();
// Returns null if the loaded library has no such table.
std::unique_ptr<RmaPlugin> adapt_rma_table(void* library, const std::string& symbol);

}  // namespace verbena::tools
