// The table versions under test, and one way to call them all: what a version does not have is left out of
// the call.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "nccl/abi_tables.h"

namespace verbena::nccl::testing {

template <int kNumber, typename TableT>
struct Version {
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

using AllVersions =
    ::testing::Types<Version<7, abi::NetV7>, Version<8, abi::NetV8>, Version<9, abi::NetV9>,
                     Version<10, abi::NetV10>, Version<11, abi::NetV11>, Version<12, abi::NetV12>>;

struct VersionNames {
  template <typename V>
  static std::string GetName(int) {
    return "v" + std::to_string(V::kVersion);
  }
};

// Any profiler handle: the plugin must not follow it.
inline void* poison_pointer() {
  return reinterpret_cast<void*>(uintptr_t{0x10});
}

// Calls every member of a table with the newest version's arguments.
template <typename V>
class Caller {
 public:
  explicit Caller(const typename V::Table& table) : table_(table) {}

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
  // Null arrays stay null.
  abi::Result irecv(void* comm, int n, void** data, const size_t* sizes, int* tags, void** mhandles,
                    void** request) const {
    if constexpr (V::kHasIntSizes) {
      int narrow = sizes == nullptr ? 0 : static_cast<int>(*sizes);
      return table_.irecv(comm, n, data, sizes == nullptr ? nullptr : &narrow, tags, mhandles, request);
    } else {
      size_t wide = sizes == nullptr ? 0 : *sizes;
      size_t* const pointer = sizes == nullptr ? nullptr : &wide;
      void* first = phandle;
      if constexpr (V::kHasConfig)
        return table_.irecv(comm, n, data, pointer, tags, mhandles, &first, request);
      if constexpr (!V::kHasConfig) return table_.irecv(comm, n, data, pointer, tags, mhandles, request);
    }
  }
  const typename V::Table& operator*() const { return table_; }
  const typename V::Table* operator->() const { return &table_; }

  abi::ProfilerCallback profiler = nullptr;
  void* phandle = poison_pointer();

 private:
  const typename V::Table& table_;
};

}  // namespace verbena::nccl::testing
