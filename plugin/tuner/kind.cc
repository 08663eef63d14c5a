#include "tuner/kind.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace verbena::tuner {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, kFunctionCount> kFunctions{"broadcast", "reduce", "all_gather",
                                                                  "reduce_scatter", "all_reduce"};
constexpr std::array<std::string_view, kAlgorithmCount> kAlgorithms{
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
constexpr std::array<std::string_view, kProtocolCount> kProtocols{"ll", "ll128", "simple"};

template <typename Kind, size_t kCount>
std::optional<Kind> parse(std::string_view name, const std::array<std::string_view, kCount>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Kind>(std::distance(names.begin(), found));
}

}  // namespace

std::string_view name_of(Function function) {
  return kFunctions[static_cast<size_t>(function)];
}

std::string_view name_of(Algorithm algorithm) {
  return kAlgorithms[static_cast<size_t>(algorithm)];
}

std::string_view name_of(Protocol protocol) {
  return kProtocols[static_cast<size_t>(protocol)];
}

std::optional<Function> parse_function(std::string_view name) {
  return parse<Function>(name, kFunctions);
}

std::optional<Algorithm> parse_algorithm(std::string_view name) {
  return parse<Algorithm>(name, kAlgorithms);
}

std::optional<Protocol> parse_protocol(std::string_view name) {
  return parse<Protocol>(name, kProtocols);
}

}  // namespace verbena::tuner
