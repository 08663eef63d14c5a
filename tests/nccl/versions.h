// The table versions under test.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "common/table_caller.h"

namespace verbena::nccl::testing {

template <int kNumber, typename Table>
using Version = tools::TableVersion<kNumber, Table>;

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

template <typename V>
class Caller : public tools::TableCaller<V> {
 public:
  explicit Caller(const typename V::Table& table) : tools::TableCaller<V>(table) {
    this->phandle = poison_pointer();
  }
};

}  // namespace verbena::nccl::testing
