#include "common/size.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace verbena::tools {
namespace {

std::optional<unsigned> find_shift_bits(std::string_view suffix) {
  std::string letters(suffix);
  std::transform(letters.begin(), letters.end(), letters.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (letters.empty() || letters == "b") return 0;
  const std::string_view rest = std::string_view(letters).substr(1);
  if (!rest.empty() && rest != "b" && rest != "ib") return std::nullopt;
  switch (letters[0]) {
    case 'k':
      return 10;
    case 'm':
      return 20;
    case 'g':
      return 30;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<uint64_t> parse_size_bytes(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  const auto shift_bits = find_shift_bits(text.substr(static_cast<size_t>(end - text.data())));
  if (!shift_bits || (number << *shift_bits) >> *shift_bits != number) return std::nullopt;
  return number << *shift_bits;
}

std::optional<SizeRange> parse_size_range(std::string_view text) {
  const size_t colon = text.find(':');
  const auto begin = parse_size_bytes(text.substr(0, colon));
  const auto end = colon == std::string_view::npos ? begin : parse_size_bytes(text.substr(colon + 1));
  if (!begin || !end || *begin > *end) return std::nullopt;
  return SizeRange{*begin, *end};
}

std::vector<uint64_t> list_sizes(SizeRange range, uint64_t factor) {
  std::vector<uint64_t> sizes;
  factor = std::max<uint64_t>(factor, 2);
  uint64_t size = range.begin_bytes;
  while (size < range.end_bytes) {
    sizes.push_back(size);
    if (size > range.end_bytes / factor) break;
    size = size == 0 ? 1 : size * factor;
  }
  if (sizes.empty() || sizes.back() != range.end_bytes) sizes.push_back(range.end_bytes);
  return sizes;
}

std::optional<std::vector<uint64_t>> parse_size_list(std::string_view text, uint64_t factor) {
  std::vector<uint64_t> sizes;
  for (;;) {
    const size_t comma = text.find(',');
    const auto range = parse_size_range(text.substr(0, comma));
    if (!range) return std::nullopt;
    for (const uint64_t size : list_sizes(*range, factor)) sizes.push_back(size);
    if (comma == std::string_view::npos) return sizes;
    text.remove_prefix(comma + 1);
  }
}

std::optional<std::string> parse_threshold(std::string_view text) {
  constexpr std::string_view kUnlimited = "unlimited";
  if (text == kUnlimited) return std::string(kUnlimited);
  const auto bytes = parse_size_bytes(text);
  if (!bytes) return std::nullopt;
  return std::to_string(*bytes);
}

std::string format_size(uint64_t bytes) {
  constexpr std::string_view kLetters = "GMK";
  for (unsigned index = 0; index < kLetters.size(); ++index) {
    const uint64_t unit_bytes = 1ULL << (30 - 10 * index);
    if (bytes >= unit_bytes && bytes % unit_bytes == 0) {
      return std::to_string(bytes / unit_bytes) + kLetters[index];
    }
  }
  return std::to_string(bytes);
}

}  // namespace verbena::tools
