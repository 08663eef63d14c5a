// Collectives, algorithms and protocols by NCCL's numbers, and their names in the tuning file.
#pragma once

#include <optional>
#include <string_view>

namespace verbena::tuner {

// The collectives that NCCL asks a tuner about.
enum class Function : int { kBroadcast, kReduce, kAllGather, kReduceScatter, kAllReduce };
enum class Algorithm : int { kTree, kRing, kCollnetDirect, kCollnetChain, kNvls, kNvlsTree, kPat };
enum class Protocol : int { kLl, kLl128, kSimple };

inline constexpr int kFunctionCount = 5;
inline constexpr int kAlgorithmCount = 7;  // NCCL up to 2.22 has no PAT
inline constexpr int kProtocolCount = 3;

constexpr int number_of(Function function) {
  return static_cast<int>(function);
}
constexpr int number_of(Algorithm algorithm) {
  return static_cast<int>(algorithm);
}
constexpr int number_of(Protocol protocol) {
  return static_cast<int>(protocol);
}

// Returns a name such as all_reduce, nvls_tree or ll128.
std::string_view name_of(Function function);
std::string_view name_of(Algorithm algorithm);
std::string_view name_of(Protocol protocol);

std::optional<Function> parse_function(std::string_view name);
std::optional<Algorithm> parse_algorithm(std::string_view name);
std::optional<Protocol> parse_protocol(std::string_view name);

}  // namespace verbena::tuner
