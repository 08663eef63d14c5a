// Profiles: restrictions that make softverbs behave like another device. SOFTVERBS_PROFILE names a profile of
// the table in profile.cc, or has KEY=VALUE words, or names a file of such words. The variable is read once.
// The profile takes effect when objects are created, so that requests have no overhead.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace verbena::softverbs {

// The members are in the order of docs/softverbs.md, which says what each member imitates.
struct Profile {
  std::string name;                       // empty: softverbs itself
  bool is_valid = true;                   // false: no device is offered
  bool shuffles_writes = false;           // order=any: engine/shuffled_writes.h
  uint64_t seed = 1;                      // seed of that order
  uint32_t vendor = 0x5356, part = 4129;  // perftest uses inline sends if it sees part 4129
  bool has_atomics = true;
  // Limits of queue pairs and receive queues. Creating a larger queue fails.
  uint32_t max_entries = 32768, max_shared_entries = 32768, max_sges = 32, max_inline_bytes = 1024;
  uint32_t max_cq_entries = 1u << 20;
  uint32_t max_address_handles = 1u << 20;  // max_ah: of a device, in each process
  bool makes_shared_queues = true;  // srq=N sets the advertised number; makes_srq=0 makes creating one fail
  // Minimum number of pieces of a receive, for a shared queue and for a queue pair's own queue.
  uint32_t min_shared_pieces = 0, min_own_pieces = 0;
  uint32_t mtu_bytes = 4096;
  uint32_t max_message_bytes = 1u << 30;
  bool takes_empty_writes = true;     // zero_write
  bool spoils_inline_writes = false;  // inline_write=broken
};

const Profile& get_profile();

// For get_profile() and tests. `problem` is empty, or describes the error.
struct ParsedProfile {
  Profile profile;
  std::string problem;
};
ParsedProfile parse_profile(std::string_view words);

}  // namespace verbena::softverbs
