// A fault plan and a rails' control file: refused with a line and a reason, or read into what the injector
// may rely on.
#include "softverbs/faults/fault_plan.h"
#include "support/message.h"

using namespace verbena;
using namespace verbena::softverbs::faults;

namespace {

void check(const Rule& rule) {
  using enum Trigger;
  fuzz::require(rule.line > 0);
  fuzz::require(rule.rail == kEveryRail || rule.rail < 32);
  fuzz::require(rule.trigger != kNth && rule.trigger != kEvery ? true : rule.number > 0);
  fuzz::require(rule.trigger != kChance || (rule.chance > 0 && rule.chance <= 1));
  fuzz::require(rule.trigger != kNone || rule.action == Action::kDelay || rule.action == Action::kLimit ||
                is_of_datagrams(rule.action));
  fuzz::require(rule.trigger != kTime || rule.action == Action::kDown || rule.action == Action::kEvent);
  fuzz::require(rule.action != Action::kDelay || rule.delay_low_ns <= rule.delay_high_ns);
  fuzz::require(rule.action != Action::kLimit || rule.bytes_per_second > 0);
  fuzz::require(rule.action != Action::kFail || rule.status != IBV_WC_SUCCESS);
  fuzz::require(rule.opcodes != 0 && rule.times > 0 && rule.flaps > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), length_bytes);
  const ParsedPlan parsed = parse_plan(text);
  if (parsed.problem.empty()) {
    for (const Rule& rule : parsed.plan.rules) check(rule);
  } else {
    fuzz::require(parsed.problem.starts_with("line "));
  }
  const RailOrders orders = parse_rails(text);
  fuzz::require((orders.up & orders.down) == 0);
  return 0;
}
