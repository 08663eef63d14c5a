// Profiles: restrictions that make softverbs behave like another device. SOFTVERBS_PROFILE names a profile of
// the table in profile.cc, or has KEY=VALUE words, or names a file of such words. It is read once and takes
// effect when objects are created, so that requests have no overhead.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace verbena::softverbs {

// In the order of docs/softverbs.md, which says what each imitates.
struct Profile {
  std::string name;                       // empty: softverbs itself
  bool is_valid = true;                   // false: no device is offered
  bool shuffles_writes = false;           // order=any: engine/shuffled_writes.h
  uint64_t seed = 1;                      // of that order
  uint32_t vendor = 0x5356, part = 4129;  // perftest knows by 4129 that the device sends inline
  bool has_atomics = true;
  // Of queue pairs and receive queues: more is refused.
  uint32_t max_entries = 32768, max_shared_entries = 32768, max_sges = 32, max_inline_bytes = 1024;
  uint32_t max_cq_entries = 1u << 20;
  bool makes_shared_queues = true;  // srq=N says what is offered, makes_srq=0 that none can be made
  // Pieces that a receive must have, of a shared queue and of a queue pair's own.
  uint32_t min_shared_pieces = 0, min_own_pieces = 0;
  uint32_t mtu_bytes = 4096;
  uint32_t max_message_bytes = 1u << 30;
  bool takes_empty_writes = true;     // zero_write
  bool spoils_inline_writes = false;  // inline_write=broken
};

const Profile& get_profile();

// For get_profile() and tests. `problem` is empty, or says what is wrong.
struct ParsedProfile {
  Profile profile;
  std::string problem;
};
ParsedProfile parse_profile(std::string_view words);

}  // namespace verbena::softverbs
