#include "chaos/round_plan.h"

#include <algorithm>

#include "chaos/dice.h"

namespace verbena::chaos {
namespace {

constexpr uint64_t kTrafficBytes = 12 << 20;
constexpr uint64_t kMinMessages = 60, kMaxMessages = 1500;
// VERBENA_FAILOVER_TIMEOUT_MS: longer than any flap, and short where it is what a round waits for.
constexpr uint64_t kPatienceMs = 6000, kBlackoutPatienceMs = 1500;

std::string number(uint64_t value) {
  return std::to_string(value);
}

// Every magnitude up to the longest is as likely: the mean is about 1.5 times that, by the magnitudes.
uint64_t choose_messages(const Traffic& traffic) {
  const uint64_t mean_bytes = 3 * (uint64_t{1} << traffic.length_bits) / (2 * (traffic.length_bits + 1));
  const uint64_t all = kTrafficBytes / std::max<uint64_t>(mean_bytes, 1) / traffic.senders.size();
  return std::clamp(all, kMinMessages, kMaxMessages);
}

void choose_traffic(Dice& dice, Traffic& traffic) {
  traffic.seed = dice.next() >> 1;
  traffic.rails = dice.pick({1, 2, 2, 4});
  traffic.abi_version = static_cast<int>(dice.between(traffic.rails == 1 ? 7 : 9, 12));
  traffic.senders.clear();
  const uint64_t lanes = dice.between(1, 3), first = dice.between(0, 1);
  for (uint64_t lane = 0; lane < lanes; ++lane)
    traffic.senders.push_back(static_cast<unsigned>((first + lane) % kEnds));
  traffic.length_bits = dice.pick({12U, 16U, 18U, 20U, 22U});
  traffic.window = dice.pick({1U, 2U, 4U, 8U, 8U});
  traffic.messages = choose_messages(traffic);
}

void choose_settings(Dice& dice, RoundPlan& plan) {
  plan.settings = {
      {"CUDA_VISIBLE_DEVICES", ""},
      {"SOFTVERBS_DEVICES", number(static_cast<uint64_t>(plan.traffic.rails))},
      {"VERBENA_IBVERBS_LIB", "softverbs"},
      {"VERBENA_SOCKET_IFNAME", "=lo"},
      {"VERBENA_MERGE_NICS", "1"},
      {"VERBENA_ACK_TIMEOUT", "12"},  // 17 ms
      {"VERBENA_RETRY_COUNT", "2"},
      {"VERBENA_CONNECT_TIMEOUT_MS", "10000"},
      {"VERBENA_FAILOVER_TIMEOUT_MS",
       number(plan.fault == Fault::kBlackout ? kBlackoutPatienceMs : kPatienceMs)},
      {"VERBENA_STALL_WARNING_MS", "2000"},
      {"VERBENA_UNPACK", "1"},
      {"VERBENA_UNPACK_THRESHOLD", dice.pick({"0", "32k", "unlimited", "unlimited"})},
      {"VERBENA_QPS_PER_CONNECTION", dice.pick({"1", "1", "2", "4"})},
      {"VERBENA_MIN_STRIPE_BYTES", dice.pick({"4k", "64k"})},
      {"VERBENA_PAGE_BYTES", dice.pick({"4k", "16k", "64k"})},
      {"VERBENA_WINDOW_PAGES", dice.pick({"0", "0", "16"})},
      {"VERBENA_RAIL_RETRY_MS", dice.pick({"20", "100"})},
      {"VERBENA_PEER_GRACE_MS", dice.pick({"100", "2000"})},
  };
  if (dice.one_in(4)) {
    plan.settings.emplace_back("SOFTVERBS_NETDEVS", "127.0.0.1");
    plan.settings.emplace_back("SOFTVERBS_FORCE_WIRE", "1");
  }
  plan.has_job_key = dice.one_in(3);
}

std::vector<unsigned> choose_moments(Dice& dice, uint64_t count) {
  std::vector<unsigned> percents;
  for (uint64_t i = 0; i < count; ++i) percents.push_back(static_cast<unsigned>(dice.between(0, 90)));
  std::sort(percents.begin(), percents.end());
  return percents;
}

unsigned choose_delay_ms(Dice& dice, uint64_t least, uint64_t most) {
  return static_cast<unsigned>(dice.between(least, most));
}

void plan_kill(Dice& dice, RoundPlan& plan) {
  plan.traffic.lives = 2;
  plan.may_fail = true;
  Strike strike{.kind = Strike::Kind::kKill, .end = dice.between(0, 1)};
  strike.phase = dice.pick({"init", "connect", "traffic", "traffic", "traffic", "traffic"});
  if (strike.phase == "traffic") strike.percent = static_cast<unsigned>(dice.between(0, 90));
  strike.delay_ms = choose_delay_ms(dice, 0, strike.phase == "traffic" ? 5 : 20);
  plan.strikes.push_back(strike);
}

void plan_stop(Dice& dice, RoundPlan& plan) {
  for (const unsigned percent : choose_moments(dice, dice.between(1, 3))) {
    Strike strike{
        .kind = Strike::Kind::kStop, .end = dice.between(0, 1), .phase = "traffic", .percent = percent};
    plan.strikes.push_back(strike);
    strike.kind = Strike::Kind::kContinue;
    strike.percent = 0;
    strike.delay_ms = choose_delay_ms(dice, 20, dice.one_in(4) ? 1000 : 150);
    strike.is_harm = false;
    plan.strikes.push_back(strike);
  }
}

std::string choose_rails_down(Dice& dice, int rails) {
  if (dice.one_in(4)) return "* down\n";
  std::string lines;
  const uint64_t first = dice.between(0, static_cast<uint64_t>(rails) - 1);
  const uint64_t count = dice.between(1, std::max<uint64_t>(1, static_cast<uint64_t>(rails) / 2));
  for (uint64_t i = 0; i < count; ++i)
    lines += number((first + i) % static_cast<uint64_t>(rails)) + " down\n";
  return lines;
}

void plan_flaps(Dice& dice, RoundPlan& plan) {
  for (const unsigned percent : choose_moments(dice, dice.between(1, 4))) {
    Strike strike{.kind = Strike::Kind::kRails, .phase = "traffic", .percent = percent};
    strike.rails = choose_rails_down(dice, plan.traffic.rails);
    plan.strikes.push_back(strike);
    strike.rails = "* up\n";
    strike.percent = 0;
    strike.delay_ms = choose_delay_ms(dice, 5, dice.one_in(4) ? 600 : 150);
    strike.is_harm = false;
    plan.strikes.push_back(strike);
  }
}

// Rails go one after the other, for good.
void plan_blackout(Dice& dice, RoundPlan& plan) {
  plan.traffic.lives = 2;
  plan.may_fail = plan.must_fail = true;
  const auto percent = static_cast<unsigned>(dice.between(0, 40));
  const bool is_at_once = dice.one_in(2);
  std::string lines;
  for (int rail = 0; rail < plan.traffic.rails; ++rail) {
    lines += number(static_cast<uint64_t>(rail)) + " down\n";
    if (is_at_once && rail + 1 != plan.traffic.rails) continue;
    Strike strike{.kind = Strike::Kind::kRails, .phase = "traffic", .percent = percent};
    strike.delay_ms = rail == 0 ? 0 : choose_delay_ms(dice, 0, 50);
    strike.rails = lines;
    plan.strikes.push_back(strike);
  }
}

// A rule of softverbs, and whether a connection has to survive it.
struct Rule {
  std::string text;
  bool is_survived = true;
};

Rule choose_rule(Dice& dice, int rails) {
  const std::string rail = dice.one_in(3) ? "*" : number(dice.between(0, static_cast<uint64_t>(rails) - 1));
  const std::string nth = " rail=" + rail + " nth=" + number(dice.between(1, 300));
  const std::string some = " rail=" + rail + " chance=" + dice.pick({"0.002", "0.01", "0.05"}) +
                           " times=" + number(dice.between(1, 4));
  switch (dice.between(0, 9)) {
    case 0:
    case 1:
      return {"fail status=RETRY_EXC work=none" + some};
    case 2:
    case 3:
      return {"fail status=RETRY_EXC work=done" + some};
    case 4:
      return {"error peer=" + std::string(dice.pick({"keep", "error"})) + some};
    case 5:
      return {"event type=QP_FATAL" + nth};
    case 6:
      return {"down for=" + number(dice.between(5, 200)) + "ms" + nth};
    case 7:
      return {"limit rate=" + number(dice.between(40, 200)) + "MB/s rail=" + rail};
    case 8:
      // Its own process has no device left if it was the only one.
      return {"event type=DEVICE_FATAL" + nth, rails > 1 && rail != "*"};
    default:
      return {"fail status=REM_ACCESS" + nth, false};
  }
}

// The same for datagrams: no queue pair fails, and the network does more.
Rule choose_datagram_rule(Dice& dice, int rails) {
  const std::string rail = dice.one_in(3) ? "*" : number(dice.between(0, static_cast<uint64_t>(rails) - 1));
  const std::string some = " rail=" + rail + " chance=" + dice.pick({"0.002", "0.01", "0.05"});
  switch (dice.between(0, 5)) {
    case 0:
    case 1:
      return {"lose" + some};
    case 2:
      return {"duplicate" + some};
    case 3:
      return {"reorder by=" + number(dice.between(1, 64)) + some};
    case 4:
      return {"down for=" + number(dice.between(5, 200)) + "ms rail=" + rail +
              " nth=" + number(dice.between(1, 300))};
    default:
      return {"limit rate=" + number(dice.between(40, 200)) + "MB/s rail=" + rail};
  }
}

void plan_failures(Dice& dice, RoundPlan& plan) {
  unsigned lost_devices = 0;
  for (std::string& faults : plan.softverbs_faults) {
    faults = "seed " + number(dice.between(1, 1000000)) + "; log";
    if (dice.one_in(2)) faults += "; delay by=0us..2ms chance=0.05 per=qp";
    for (uint64_t rules = dice.between(0, 3); rules != 0; --rules) {
      const Rule rule = plan.is_datagram ? choose_datagram_rule(dice, plan.traffic.rails)
                                         : choose_rule(dice, plan.traffic.rails);
      faults += "; " + rule.text;
      lost_devices += rule.text.find("DEVICE_FATAL") != std::string::npos ? 1 : 0;
      plan.may_fail |= !rule.is_survived || lost_devices > 1;  // each end may lose another rail
    }
  }
}

void plan_leaving(Dice& dice, RoundPlan& plan) {
  plan.traffic.lives = 3;
  plan.may_fail = true;
  const auto percent = static_cast<unsigned>(dice.between(0, 90));
  for (unsigned& leave : plan.traffic.leave_percent)
    if (!dice.one_in(3)) leave = percent;
}

Fault choose_fault(Dice& dice, const std::vector<Fault>& faults) {
  constexpr uint64_t kWeights[] = {1, 4, 2, 4, 1, 4, 2};  // by fault
  std::vector<Fault> urn;
  for (const Fault fault : faults) urn.insert(urn.end(), kWeights[static_cast<size_t>(fault)], fault);
  return urn[dice.between(0, urn.size() - 1)];
}

}  // namespace

const char* describe_fault(Fault fault) {
  constexpr const char* kNames[] = {"none", "kill", "stop", "flap", "blackout", "plan", "leave"};
  return kNames[static_cast<int>(fault)];
}

std::string RoundPlan::describe() const {
  std::string text = number(static_cast<uint64_t>(traffic.rails)) + " rails, v" +
                     number(static_cast<uint64_t>(traffic.abi_version)) + ", senders";
  for (const unsigned sender : traffic.senders) text += " " + number(sender);
  text += ", " + number(traffic.messages) + " messages below 2^" + number(traffic.length_bits) + ", window " +
          number(traffic.window) + (has_job_key ? ", job key" : "") + (is_datagram ? ", datagrams" : "");
  for (const auto& [name, value] : settings) {
    const bool is_chosen = name == "VERBENA_UNPACK_THRESHOLD" || name == "VERBENA_QPS_PER_CONNECTION" ||
                           name == "VERBENA_PAGE_BYTES" || name == "SOFTVERBS_FORCE_WIRE";
    if (is_chosen) text += ", " + name + "=" + value;
  }
  for (const Strike& strike : strikes) text += "; " + strike.describe();
  for (const std::string& faults : softverbs_faults) text += faults.empty() ? "" : "; " + faults;
  return text;
}

std::string Strike::describe() const {
  constexpr const char* kNames[] = {"kill", "stop", "continue", "rails"};
  std::string text = kNames[static_cast<int>(kind)];
  if (kind == Kind::kRails) {
    text += " '" + rails.substr(0, rails.size() - 1) + "'";
    std::replace(text.begin(), text.end(), '\n', ',');
  } else {
    text += " " + number(end);
  }
  if (!phase.empty()) text += " in " + phase + " from " + number(percent) + " %";
  return text + " after " + number(delay_ms) + " ms";
}

RoundPlan make_plan(uint64_t seed, uint64_t round, const std::vector<Fault>& faults) {
  RoundPlan plan;
  plan.seed = seed;
  plan.round = round;
  Dice dice(seed * 1000003 + round);
  plan.fault = choose_fault(dice, faults);
  choose_traffic(dice, plan.traffic);
  choose_settings(dice, plan);
  plan.is_datagram = Dice(~(seed * 1000003 + round)).one_in(3);  // all else is as in either mode
  if (plan.is_datagram) plan.settings.emplace_back("VERBENA_TRANSPORT", "datagram");
  switch (plan.fault) {
    case Fault::kNone:
      break;
    case Fault::kKill:
      plan_kill(dice, plan);
      break;
    case Fault::kStop:
      plan_stop(dice, plan);
      break;
    case Fault::kFlap:
      plan_flaps(dice, plan);
      break;
    case Fault::kBlackout:
      plan_blackout(dice, plan);
      break;
    case Fault::kPlan:
      plan_failures(dice, plan);
      break;
    case Fault::kLeave:
      plan_leaving(dice, plan);
      break;
  }
  return plan;
}

}  // namespace verbena::chaos
