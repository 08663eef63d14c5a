#include "softverbs/shared/profile.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "softverbs/shared/config.h"

namespace verbena::softverbs {
namespace {

constexpr size_t kMaxFileBytes = 64 << 10;

struct BuiltIn {
  std::string_view name, words;
};
// None of these devices has been tested: docs/limits.md.
constexpr BuiltIn kBuiltIn[] = {
    {"mlx5", "vendor=0x15b3"},
    {"mlx5-ar", "mlx5 order=any"},
    {"cx8", "mlx5-ar part=4131"},
    {"bnxt", "vendor=0x14e4 atomics=0 empty_receive=own"},
    {"irdma", "vendor=0x8086 atomics=0 srq=0 inline=101"},
    {"ionic", "vendor=0x1dd8 srq=0"},
    {"minimal",
     "vendor=0xfffffe order=any atomics=0 makes_srq=0 empty_receive=none inline=0 sges=2 entries=4096 "
     "cqe=65536 mtu=1024 zero_write=0"},
};

bool read_number(std::string_view text, uint64_t highest, uint64_t& number) {
  const std::string copy(text);
  char* end = nullptr;
  errno = 0;
  number = strtoull(copy.c_str(), &end, 0);
  return !copy.empty() && copy[0] != '-' && *end == '\0' && errno == 0 && number <= highest;
}

template <auto kMember, uint64_t kHighest, uint64_t kLowest = 0>
bool read_into(Profile& profile, std::string_view text) {
  uint64_t number = 0;
  if (!read_number(text, kHighest, number) || number < kLowest) return false;
  profile.*kMember = static_cast<std::remove_reference_t<decltype(profile.*kMember)>>(number);
  return true;
}

// Reads one of two words, the first of which sets the flag.
bool choose(std::string_view text, std::string_view yes, std::string_view no, bool& flag) {
  flag = text == yes;
  return text == yes || text == no;
}
template <auto kMember>
bool read_flag(Profile& profile, std::string_view text) {
  return choose(text, "1", "0", profile.*kMember);
}

struct Key {
  std::string_view name;
  bool (*read)(Profile& profile, std::string_view text);
};
constexpr Key kKeys[] = {
    {"order", [](Profile& profile,
                 std::string_view text) { return choose(text, "any", "posted", profile.shuffles_writes); }},
    {"seed", read_into<&Profile::seed, UINT64_MAX>},
    {"vendor", read_into<&Profile::vendor, 0xffffff>},
    {"part", read_into<&Profile::part, 0xffffff>},
    {"atomics", read_flag<&Profile::has_atomics>},
    {"entries", read_into<&Profile::max_entries, 32768, 1>},
    {"srq", read_into<&Profile::max_shared_entries, 32768>},
    {"makes_srq", read_flag<&Profile::makes_shared_queues>},
    {"empty_receive",
     [](Profile& profile, std::string_view text) {
       profile.min_shared_pieces = text == "any" ? 0 : 1;
       profile.min_own_pieces = text == "none" ? 1 : 0;
       return text == "any" || text == "own" || text == "none";
     }},
    {"sges", read_into<&Profile::max_sges, 32, 1>},
    {"inline", read_into<&Profile::max_inline_bytes, 1024>},
    {"cqe", read_into<&Profile::max_cq_entries, 1u << 20, 1>},
    {"max_ah", read_into<&Profile::max_address_handles, 1u << 20, 1>},
    {"mtu",
     [](Profile& profile, std::string_view text) {
       return read_into<&Profile::mtu_bytes, 4096, 256>(profile, text) &&
              std::has_single_bit(profile.mtu_bytes);
     }},
    {"max_msg", read_into<&Profile::max_message_bytes, 1u << 30, 4096>},
    {"zero_write", read_flag<&Profile::takes_empty_writes>},
    {"inline_write",
     [](Profile& profile, std::string_view text) {
       return choose(text, "broken", "ok", profile.spoils_inline_writes);
     }},
};

std::string read_word(Profile& profile, std::string_view word) {
  const size_t equals = word.find('=');
  for (const Key& key : kKeys) {
    if (equals == std::string_view::npos || key.name != word.substr(0, equals)) continue;
    if (key.read(profile, word.substr(equals + 1))) return "";
    return "'" + std::string(word) + "' is not valid";
  }
  for (const BuiltIn& built_in : kBuiltIn) {
    if (built_in.name != word) continue;
    ParsedProfile parsed = parse_profile(built_in.words);
    profile = parsed.profile;
    return parsed.problem;
  }
  return "'" + std::string(word) + "' is neither a profile nor KEY=VALUE";
}

bool read_file(const char* path, std::string& text) {
  FILE* file = fopen(path, "re");
  if (file == nullptr) return false;
  text.resize(kMaxFileBytes);
  text.resize(fread(text.data(), 1, text.size(), file));
  const bool is_read = ferror(file) == 0;
  fclose(file);
  return is_read;
}

Profile load() {
  const std::string& value = get_config().profile;
  if (value.empty()) return {};
  ParsedProfile parsed;
  std::string text = value;
  if ((value[0] == '/' || value[0] == '.') && !read_file(value.c_str(), text)) {
    parsed.problem = strerror(errno);
  } else {
    parsed = parse_profile(text);
  }
  Profile& profile = parsed.profile;
  profile.name = value;
  profile.is_valid = parsed.problem.empty();
  if (!profile.is_valid) {
    warn("SOFTVERBS_PROFILE is invalid, so softverbs offers no device: %s", parsed.problem.c_str());
  } else if (profile.shuffles_writes) {
    warn("profile %s: the writes of a queue pair take effect in random order (seed %llu)", value.c_str(),
         static_cast<unsigned long long>(profile.seed));
  }
  return profile;
}

}  // namespace

// A `#` begins a comment, up to the end of the line.
ParsedProfile parse_profile(std::string_view words) {
  ParsedProfile parsed;
  for (size_t at = 0; at < words.size() && parsed.problem.empty();) {
    constexpr std::string_view kSpaces = " \t\r\n";
    const size_t begin = words.find_first_not_of(kSpaces, at);
    if (begin == std::string_view::npos) break;
    const size_t end =
        std::min(words.find_first_of(words[begin] == '#' ? "\n" : kSpaces, begin), words.size());
    if (words[begin] != '#') parsed.problem = read_word(parsed.profile, words.substr(begin, end - begin));
    at = end;
  }
  return parsed;
}

const Profile& get_profile() {
  static const Profile* profile = new Profile(load());
  return *profile;
}

}  // namespace verbena::softverbs
