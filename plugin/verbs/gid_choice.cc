#include "verbs/gid_choice.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace verbena::verbs {
namespace {

constexpr uint8_t kIpv4Prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool has_version(GidType type, int roce_version) {
  return type == GidType::kUnknown || (type == GidType::kRoceV2) == (roce_version == 2);
}

int rate_entry(const GidEntry& entry, const GidPreference& preference) {
  return (has_version(entry.type, preference.roce_version) ? 4 : 0) + (is_link_local_gid(entry.gid) ? 0 : 2) +
         (is_ipv4_gid(entry.gid) != preference.is_ipv6 ? 1 : 0);
}

}  // namespace

bool is_empty_gid(const uint8_t* gid) {
  return std::all_of(gid, gid + kGidBytes, [](uint8_t byte) { return byte == 0; });
}

bool is_ipv4_gid(const uint8_t* gid) {
  return std::memcmp(gid, kIpv4Prefix, sizeof(kIpv4Prefix)) == 0;
}

bool is_link_local_gid(const uint8_t* gid) {
  if (is_ipv4_gid(gid)) return gid[12] == 169 && gid[13] == 254;
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

int choose_gid(std::span<const GidEntry> table, const GidPreference& preference) {
  int best_index = kNoGid, best_rating = -1;
  for (const GidEntry& entry : table) {
    if (is_empty_gid(entry.gid)) continue;
    const int rating = rate_entry(entry, preference);
    if (rating <= best_rating) continue;
    best_rating = rating;
    best_index = entry.index;
  }
  return best_index;
}

std::string format_gid(const uint8_t* gid) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, gid, text, sizeof(text));
  return text;
}

}  // namespace verbena::verbs
