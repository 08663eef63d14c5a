// The tables linked into the test itself (over the fake core), by version.
#pragma once

#include <type_traits>

#include "nccl/abi_tables.h"

extern "C" {
extern verbena::abi::ncclNet_v7_t ncclNetPlugin_v7;
extern verbena::abi::ncclNet_v8_t ncclNetPlugin_v8;
extern verbena::abi::ncclNet_v9_t ncclNetPlugin_v9;
extern verbena::abi::ncclNet_v10_t ncclNetPlugin_v10;
extern verbena::abi::ncclNet_v11_t ncclNetPlugin_v11;
extern verbena::abi::ncclNet_v12_t ncclNetPlugin_v12;
}

namespace verbena::nccl::testing {

template <typename Table>
const Table& linked_table() {
  if constexpr (std::is_same_v<Table, abi::ncclNet_v7_t>) return ncclNetPlugin_v7;
  if constexpr (std::is_same_v<Table, abi::ncclNet_v8_t>) return ncclNetPlugin_v8;
  if constexpr (std::is_same_v<Table, abi::ncclNet_v9_t>) return ncclNetPlugin_v9;
  if constexpr (std::is_same_v<Table, abi::ncclNet_v10_t>) return ncclNetPlugin_v10;
  if constexpr (std::is_same_v<Table, abi::ncclNet_v11_t>) return ncclNetPlugin_v11;
  if constexpr (std::is_same_v<Table, abi::ncclNet_v12_t>) return ncclNetPlugin_v12;
}

}  // namespace verbena::nccl::testing
