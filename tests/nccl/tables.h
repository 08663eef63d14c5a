// The tables linked into the test itself (over the fake core), by version.
#pragma once

#include <type_traits>

#include "nccl/abi_tables.h"

extern "C" {
extern verbena::abi::NetV7 ncclNetPlugin_v7;
extern verbena::abi::NetV8 ncclNetPlugin_v8;
extern verbena::abi::NetV9 ncclNetPlugin_v9;
extern verbena::abi::NetV10 ncclNetPlugin_v10;
extern verbena::abi::NetV11 ncclNetPlugin_v11;
extern verbena::abi::NetV12 ncclNetPlugin_v12;
}

namespace verbena::nccl::testing {

template <typename Table>
const Table& linked_table() {
  if constexpr (std::is_same_v<Table, abi::NetV7>) return ncclNetPlugin_v7;
  if constexpr (std::is_same_v<Table, abi::NetV8>) return ncclNetPlugin_v8;
  if constexpr (std::is_same_v<Table, abi::NetV9>) return ncclNetPlugin_v9;
  if constexpr (std::is_same_v<Table, abi::NetV10>) return ncclNetPlugin_v10;
  if constexpr (std::is_same_v<Table, abi::NetV11>) return ncclNetPlugin_v11;
  if constexpr (std::is_same_v<Table, abi::NetV12>) return ncclNetPlugin_v12;
}

}  // namespace verbena::nccl::testing
