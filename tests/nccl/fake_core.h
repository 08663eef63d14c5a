// A link-time double of nccl/net_core.h: remembers what it was called with and does what the test says.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "nccl/net_core.h"

namespace verbena::nccl::testing {

// One call of the core: its arguments in the order of its declaration, pointers and numbers as words. Where
// the core takes an array of lengths the word is the first length; where it takes a structure by reference it
// is one member of it.
struct Call {
  std::string function;
  std::vector<uint64_t> words;
  bool operator==(const Call&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Call& call);

template <typename T>
uint64_t to_word(T value) {
  if constexpr (std::is_integral_v<T>) return static_cast<uint64_t>(value);
  if constexpr (!std::is_integral_v<T>) return reinterpret_cast<uint64_t>(value);
}

struct FakeCore {
  std::vector<Call> calls;
  std::function<Outcome()> answer = [] { return Outcome{}; };  // what every call returns, or throws
  void* produced = nullptr;  // what goes to a call's output pointer on success
  bool is_idle = true;
  int produced_done = 1;
  int produced_size_bytes = 0;
  uint64_t request_on_entry = 0;  // of the last irecv
  abi::ncclNetProperties_v12_t properties{};
  abi::ncclNetVDeviceProps_v12_t members{};  // of the last make_virtual_device
  abi::NetAttr attributes{};                 // of the last set_attributes
};

FakeCore& fake_core();

}  // namespace verbena::nccl::testing
