#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "chaos/traffic.h"

namespace verbena::chaos {

inline constexpr size_t kEnds = 2;

enum class Fault { kNone, kKill, kStop, kFlap, kBlackout, kPlan, kLeave };
inline constexpr Fault kFaults[] = {Fault::kNone,     Fault::kKill, Fault::kStop, Fault::kFlap,
                                    Fault::kBlackout, Fault::kPlan, Fault::kLeave};
const char* describe_fault(Fault fault);

// What the driver does from outside. Strikes come in order: each waits until `end` has come to the phase and
// so far in its traffic, then for the delay.
struct Strike {
  enum class Kind { kKill, kStop, kContinue, kRails };
  Kind kind = Kind::kKill;
  size_t end = 0;
  std::string phase{};
  unsigned percent = 0;
  unsigned delay_ms = 0;
  std::string rails{};  // kRails: what the control file says from then on
  bool is_harm = true;  // false: it undoes one

  std::string describe() const;
};

// One round: a pure function of the run's seed and the round's number.
struct RoundPlan {
  uint64_t seed = 0;
  uint64_t round = 0;
  Fault fault = Fault::kNone;
  Traffic traffic;
  std::vector<std::pair<std::string, std::string>> settings;  // of both ends
  std::array<std::string, kEnds> softverbs_faults;            // of each
  std::vector<Strike> strikes;
  bool has_job_key = false;
  bool is_datagram = false;  // VERBENA_TRANSPORT
  // The allowed outcome of an end's first life, unless the round kills it. A failure is a reported remote
  // error.
  bool may_fail = false;
  bool must_fail = false;

  std::string describe() const;
};

// `faults`: those to choose from.
RoundPlan make_plan(uint64_t seed, uint64_t round, const std::vector<Fault>& faults);

}  // namespace verbena::chaos
