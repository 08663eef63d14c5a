#include "softverbs/shared/profile.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

template <typename T>
bool read_into(std::string_view text, T& value, uint64_t highest) {
  uint64_t number = 0;
  const bool is_number = read_number(text, highest, number);
  if (is_number) value = static_cast<T>(number);
  return is_number;
}

bool read_flag(std::string_view text, bool& flag) {
  flag = text == "1";
  return text == "0" || text == "1";
}

struct Key {
  std::string_view name;
  bool (*read)(Profile& profile, std::string_view text);
};
constexpr Key kKeys[] = {
    {"order",
     [](Profile& profile, std::string_view text) {
       profile.shuffles_writes = text == "any";
       return text == "any" || text == "posted";
     }},
    {"seed",
     [](Profile& profile, std::string_view text) { return read_into(text, profile.seed, UINT64_MAX); }},
    {"vendor",
     [](Profile& profile, std::string_view text) { return read_into(text, profile.vendor, 0xffffff); }},
    {"part", [](Profile& profile, std::string_view text) { return read_into(text, profile.part, 0xffffff); }},
    {"atomics", [](Profile& profile, std::string_view text) { return read_flag(text, profile.has_atomics); }},
    {"entries",
     [](Profile& profile, std::string_view text) {
       return read_into(text, profile.max_entries, 32768) && profile.max_entries != 0;
     }},
    {"srq", [](Profile& profile,
               std::string_view text) { return read_into(text, profile.max_shared_entries, 32768); }},
    {"makes_srq",
     [](Profile& profile, std::string_view text) { return read_flag(text, profile.makes_shared_queues); }},
    {"empty_receive",
     [](Profile& profile, std::string_view text) {
       profile.min_shared_pieces = text == "any" ? 0 : 1;
       profile.min_own_pieces = text == "none" ? 1 : 0;
       return text == "any" || text == "own" || text == "none";
     }},
    {"sges",
     [](Profile& profile, std::string_view text) {
       return read_into(text, profile.max_sges, 32) && profile.max_sges != 0;
     }},
    {"inline",
     [](Profile& profile, std::string_view text) { return read_into(text, profile.max_inline_bytes, 1024); }},
    {"cqe",
     [](Profile& profile, std::string_view text) {
       return read_into(text, profile.max_cq_entries, 1u << 20) && profile.max_cq_entries != 0;
     }},
    {"max_ah",
     [](Profile& profile, std::string_view text) {
       return read_into(text, profile.max_address_handles, 1u << 20) && profile.max_address_handles != 0;
     }},
    {"mtu",
     [](Profile& profile, std::string_view text) {
       return read_into(text, profile.mtu_bytes, 4096) && profile.mtu_bytes >= 256 &&
              (profile.mtu_bytes & (profile.mtu_bytes - 1)) == 0;
     }},
    {"max_msg",
     [](Profile& profile, std::string_view text) {
       return read_into(text, profile.max_message_bytes, 1u << 30) && profile.max_message_bytes >= 4096;
     }},
    {"zero_write",
     [](Profile& profile, std::string_view text) { return read_flag(text, profile.takes_empty_writes); }},
    {"inline_write",
     [](Profile& profile, std::string_view text) {
       profile.spoils_inline_writes = text == "broken";
       return text == "broken" || text == "ok";
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
