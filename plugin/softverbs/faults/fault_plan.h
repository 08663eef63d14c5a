// A plan of faults: its rules, and the parser of its text (docs/fault-injection.md has the syntax).
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::softverbs::faults {

enum class Action {
  kFail,
  kError,
  kDrop,
  kDelay,
  kLimit,
  kDown,
  kEvent,
  kLose,
  kDuplicate,
  kReorder,
  kCorrupt
};

enum class Trigger { kNone, kNth, kEvery, kChance, kTime };

// The effect of a failed request on the queue pair at the other end.
enum class Far { kAsStatus, kError, kKeep };

inline constexpr uint32_t kEveryRail = UINT32_MAX;
inline constexpr uint32_t kEveryOpcode = UINT32_MAX;
inline constexpr uint32_t kEveryPath = UINT32_MAX;
inline constexpr uint32_t kPaths = 256;  // a datagram's path: its flow label modulo this
inline constexpr uint64_t kUnlimited = UINT64_MAX;

// Returns whether a fault applies only to datagrams.
inline bool is_of_datagrams(Action action) {
  return action >= Action::kLose;
}

// One line of a plan.
struct Rule {
  uint32_t line = 0;
  Action action{};
  // The next members select requests.
  uint32_t rail = kEveryRail;
  uint64_t queue_pair = 0;  // 0: all; otherwise the n-th queue pair that the process created on the rail
  uint32_t opcodes = kEveryOpcode;    // bits, by enum ibv_wr_opcode
  uint32_t path = kEveryPath;         // of datagrams
  bool counts_by_queue_pair = false;  // false: counts by rail
  // The next members select when the fault occurs.
  Trigger trigger = Trigger::kNone;
  uint64_t number = 0;  // of kNth and kEvery
  double chance = 0;
  uint64_t at_ns = 0;           // since the process opened its first device
  uint64_t after = 0;           // number of requests that pass before the rule counts
  uint64_t times = kUnlimited;  // maximum number of faults per stream of requests
  // The next members describe the effect.
  ibv_wc_status status = IBV_WC_SUCCESS;
  Far far = Far::kAsStatus;
  bool is_after_work = false;  // the request is executed, then reported as failed
  uint64_t delay_low_ns = 0, delay_high_ns = 0;
  uint64_t bytes_per_second = 0;
  uint64_t packets = 0;  // kReorder: maximum number of datagrams that overtake it
  uint64_t bytes = 0;    // kCorrupt: number of bytes to change
  ibv_event_type event{};
  uint64_t down_ns = kUnlimited, up_ns = 0, flaps = 1;
};

struct FaultPlan {
  uint64_t seed = 1;
  bool is_logged = false;
  std::vector<Rule> rules;
};

// `problem` is empty, or names the line and its error.
struct ParsedPlan {
  FaultPlan plan;
  std::string problem;
};
ParsedPlan parse_plan(std::string_view text);

// The rails that a control file declares up or down, as bits.
struct RailOrders {
  uint32_t up = 0, down = 0;
  std::string problem;
};
// Reads lines `RAIL up|down`, where RAIL is a number or *; for each rail the last line counts. An unfinished
// last line is ignored: it is still being written.
RailOrders parse_rails(std::string_view text);

}  // namespace verbena::softverbs::faults
