// The tables of NCCL's device API in a plugin's library, as NCCL's proxy calls them, with one interface.
// Results are returned as they come: what a call answers is what tests are about.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nccl/rma_abi.h"

namespace verbena::tools {

// What the data functions are given first: the table knows which of them it passes.
struct RmaTarget {
  void* communicator = nullptr;
  void* context = nullptr;
  int index = 0;  // of the context
};

// Of a put, or with the remote end first of a get. A handle may be null where there are no bytes.
struct RmaCopy {
  uint64_t local_offset = 0;
  void* local = nullptr;
  size_t bytes = 0;
  uint64_t remote_offset = 0;
  void* remote = nullptr;
  uint32_t rank = 0;
  bool is_hinted = false;  // ignored by tables that know no such hint
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
  void* gin_handle = nullptr;  // of the tables that have one; else as mhandle
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
// Null if there is no such table in what dlopen gave.
std::unique_ptr<RmaPlugin> adapt_rma_table(void* library, const std::string& symbol);

}  // namespace verbena::tools
