// The table versions under test.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "common/table_caller.h"

namespace verbena::nccl::testing {

template <int kNumber, typename Table>
using Version = tools::TableVersion<kNumber, Table>;

using AllVersions = ::testing::Types<Version<7, abi::ncclNet_v7_t>, Version<8, abi::ncclNet_v8_t>,
                                     Version<9, abi::ncclNet_v9_t>, Version<10, abi::ncclNet_v10_t>,
                                     Version<11, abi::ncclNet_v11_t>, Version<12, abi::ncclNet_v12_t>>;

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

template <typename V>
class Caller : public tools::TableCaller<V> {
 public:
  explicit Caller(const typename V::Table& table) : tools::TableCaller<V>(table) {
    this->phandle = poison_pointer();
  }
};

}  // namespace verbena::nccl::testing
