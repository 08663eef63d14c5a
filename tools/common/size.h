#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::tools {

struct SizeRange {
  uint64_t begin_bytes = 0;
  uint64_t end_bytes = 0;
};

// "0", "64", "4k", "512K", "64M", "1g", optionally with B or iB after the letter; powers of 1024.
std::optional<uint64_t> parse_size_bytes(std::string_view text);

// "8:64M", or one size, which is a range with equal ends.
std::optional<SizeRange> parse_size_range(std::string_view text);

// begin, begin*factor, ..., and always the end. A range from 0 is 0, 1, factor, ...
std::vector<uint64_t> list_sizes(SizeRange range, uint64_t factor);

// Sizes and ranges separated by commas, each range stepped by `factor`: "8:64K", "4K,64K,1M:16M".
std::optional<std::vector<uint64_t>> parse_size_list(std::string_view text, uint64_t factor);

// A value for VERBENA_UNPACK_THRESHOLD: a size in bytes, or "unlimited"; nullopt for anything else.
std::optional<std::string> parse_threshold(std::string_view text);

// The shortest exact form: 8, 4K, 64M.
std::string format_size(uint64_t bytes);

}  // namespace verbena::tools
