// Calls NCCL's net tables of all versions through one interface, which leaves out arguments that a version
// lacks. Results are NCCL's codes; net_plugin.h throws exceptions instead.
#pragma once

#include <string>

#include "nccl/abi_tables.h"

namespace verbena::tools {

template <int kNumber, typename TableT>
struct TableVersion {
  using Table = TableT;
  using Properties = typename Table::Properties;
  static constexpr int kVersion = kNumber;
  static constexpr bool kHasContext = kNumber >= 11;
  static constexpr bool kHasConfig = kNumber >= 10;
  static constexpr bool kHasHint = kNumber >= 9;
  static constexpr bool kHasVDevice = kNumber >= 9;
  static constexpr bool kHasIntSizes = kNumber <= 8;
  static std::string symbol() { return "ncclNetPlugin_v" + std::to_string(kNumber); }
};

// Calls the functions of a table with the arguments of the newest version.
template <typename V>
class TableCaller {
 public:
  explicit TableCaller(const typename V::Table& table) : table_(table) {}

  abi::Result init(void** context, uint64_t id, int traffic_class, abi::DebugLogger logger) const {
    if constexpr (V::kHasContext) {
      abi::NetCommConfig config{traffic_class};
      return table_.init(context, id, &config, logger, profiler);
    } else if constexpr (V::kHasConfig) {
      return table_.init(logger, profiler);
    } else {
      return table_.init(logger);
    }
  }
  abi::Result finalize(void* context) const {
    if constexpr (V::kHasContext) return table_.finalize(context);
    return abi::kSuccess;
  }
  abi::Result listen(void* context, int device, void* handle, void** comm) const {
    if constexpr (V::kHasContext) return table_.listen(context, device, handle, comm);
    if constexpr (!V::kHasContext) return table_.listen(device, handle, comm);
  }
  abi::Result connect(void* context, int device, int traffic_class, void* handle, void** comm,
                      abi::NetDeviceHandle** device_handle) const {
    if constexpr (V::kHasContext) {
      return table_.connect(context, device, handle, comm, device_handle);
    } else if constexpr (V::kHasConfig) {
      abi::NetCommConfig config{traffic_class};
      return table_.connect(device, &config, handle, comm, device_handle);
    } else {
      return table_.connect(device, handle, comm, device_handle);
    }
  }
  abi::Result reg_mr(void* comm, void* data, size_t size, int type, void** mhandle) const {
    if constexpr (V::kVersion == 7) return table_.reg_mr(comm, data, static_cast<int>(size), type, mhandle);
    if constexpr (V::kVersion != 7) return table_.reg_mr(comm, data, size, type, mhandle);
  }
  abi::Result isend(void* comm, void* data, size_t size, int tag, void* mhandle, void** request) const {
    if constexpr (V::kHasIntSizes) {
      return table_.isend(comm, data, static_cast<int>(size), tag, mhandle, request);
    } else if constexpr (V::kHasConfig) {
      return table_.isend(comm, data, size, tag, mhandle, phandle, request);
    } else {
      return table_.isend(comm, data, size, tag, mhandle, request);
    }
  }
  // Null arrays stay null. At most eight elements of each array are passed on.
  abi::Result irecv(void* comm, int n, void** data, const size_t* sizes, int* tags, void** mhandles,
                    void** request) const {
    constexpr int kMaxReceives = 8;
    const int count = n < 1 ? 1 : n < kMaxReceives ? n : kMaxReceives;
    if constexpr (V::kHasIntSizes) {
      int narrow[kMaxReceives] = {};
      for (int i = 0; sizes != nullptr && i < count; ++i) narrow[i] = static_cast<int>(sizes[i]);
      return table_.irecv(comm, n, data, sizes == nullptr ? nullptr : narrow, tags, mhandles, request);
    } else {
      size_t wide[kMaxReceives] = {};
      for (int i = 0; sizes != nullptr && i < count; ++i) wide[i] = sizes[i];
      size_t* const pointer = sizes == nullptr ? nullptr : wide;
      void* phandles[kMaxReceives];
      for (void*& handle : phandles) handle = phandle;
      if constexpr (V::kHasConfig)
        return table_.irecv(comm, n, data, pointer, tags, mhandles, phandles, request);
      if constexpr (!V::kHasConfig) return table_.irecv(comm, n, data, pointer, tags, mhandles, request);
    }
  }
  const typename V::Table& operator*() const { return table_; }
  const typename V::Table* operator->() const { return &table_; }

  abi::ProfilerCallback profiler = nullptr;
  void* phandle = nullptr;

 private:
  const typename V::Table& table_;
};

}  // namespace verbena::tools
