#include "softverbs/faults/fault_plan.h"

#include <set>

#include "softverbs/faults/words.h"
#include "softverbs/shared/config.h"

namespace verbena::softverbs::faults {
namespace {

constexpr size_t kMaxRules = 256;
constexpr uint64_t kMaxReordered = 4096, kMaxCorruptBytes = 64;

struct Verb {
  std::string_view name;
  Action action;
};
constexpr Verb kVerbs[] = {
    {"fail", Action::kFail},       {"error", Action::kError},    {"drop", Action::kDrop},
    {"delay", Action::kDelay},     {"limit", Action::kLimit},    {"down", Action::kDown},
    {"event", Action::kEvent},     {"lose", Action::kLose},      {"duplicate", Action::kDuplicate},
    {"reorder", Action::kReorder}, {"corrupt", Action::kCorrupt}};

constexpr uint32_t bit(Action action) {
  return 1u << static_cast<uint32_t>(action);
}
constexpr uint32_t kAll = UINT32_MAX;
constexpr uint32_t kCounting = kAll & ~bit(Action::kLimit);
constexpr uint32_t kFailing = bit(Action::kFail) | bit(Action::kError);
constexpr uint32_t kTimed = bit(Action::kDown) | bit(Action::kEvent);
constexpr uint32_t kOfDatagrams =
    bit(Action::kLose) | bit(Action::kDuplicate) | bit(Action::kReorder) | bit(Action::kCorrupt);

bool set_trigger(Rule& rule, Trigger trigger) {
  if (rule.trigger != Trigger::kNone) return false;
  rule.trigger = trigger;
  return true;
}

bool read_positive(std::string_view text, uint64_t& number) {
  return read_number(text, number) && number > 0;
}

bool read_delay(Rule& rule, std::string_view text) {
  const size_t dots = text.find("..");
  if (!read_time(text.substr(0, dots), rule.delay_low_ns)) return false;
  rule.delay_high_ns = rule.delay_low_ns;
  if (dots == std::string_view::npos) return true;
  return read_time(text.substr(dots + 2), rule.delay_high_ns) && rule.delay_low_ns <= rule.delay_high_ns;
}

template <typename T>
bool choose(std::string_view text, std::string_view first, T first_value, std::string_view second,
            T second_value, T& value) {
  value = text == first ? first_value : second_value;
  return text == first || text == second;
}

struct Key {
  std::string_view name;
  uint32_t actions;  // bits of the actions that have this key
  bool (*read)(Rule& rule, std::string_view text);
};

template <auto kRead, auto kMember>
bool read_as(Rule& rule, std::string_view text) {
  return kRead(text, rule.*kMember);
}
template <Trigger kTrigger, auto kRead, auto kMember>
bool read_trigger(Rule& rule, std::string_view text) {
  return set_trigger(rule, kTrigger) && kRead(text, rule.*kMember);
}
template <auto kMember, uint64_t kHighest>
bool read_up_to(Rule& rule, std::string_view text) {
  return read_positive(text, rule.*kMember) && rule.*kMember <= kHighest;
}
template <auto kMember>
bool read_length(Rule& rule, std::string_view text) {
  return read_time(text, rule.*kMember) && rule.*kMember > 0;
}

constexpr Key kKeys[] = {
    {"rail", kAll, [](Rule& rule, std::string_view text) { return read_rail(text, rule.rail, kEveryRail); }},
    {"qp", kCounting, read_as<read_positive, &Rule::queue_pair>},
    {"opcode", kCounting, read_as<read_opcodes, &Rule::opcodes>},
    {"per", kCounting,
     [](Rule& rule, std::string_view text) {
       return choose(text, "qp", true, "rail", false, rule.counts_by_queue_pair);
     }},
    {"nth", kCounting, read_trigger<Trigger::kNth, read_positive, &Rule::number>},
    {"every", kCounting, read_trigger<Trigger::kEvery, read_positive, &Rule::number>},
    {"chance", kCounting, read_trigger<Trigger::kChance, read_chance, &Rule::chance>},
    {"at", kTimed, read_trigger<Trigger::kTime, read_time, &Rule::at_ns>},
    {"after", kCounting, read_as<read_number, &Rule::after>},
    {"times", kCounting, read_as<read_positive, &Rule::times>},
    {"status", bit(Action::kFail), read_as<read_status, &Rule::status>},
    {"peer", kFailing,
     [](Rule& rule, std::string_view text) {
       return choose(text, "error", Far::kError, "keep", Far::kKeep, rule.far);
     }},
    {"work", bit(Action::kFail),
     [](Rule& rule, std::string_view text) {
       return choose(text, "done", true, "none", false, rule.is_after_work);
     }},
    {"by", bit(Action::kDelay), read_delay},
    {"by", bit(Action::kReorder), read_up_to<&Rule::packets, kMaxReordered>},
    {"bytes", bit(Action::kCorrupt), read_up_to<&Rule::bytes, kMaxCorruptBytes>},
    {"path", kOfDatagrams | bit(Action::kDown),
     [](Rule& rule, std::string_view text) {
       uint64_t path = 0;
       const bool is_known = read_number(text, path) && path < kPaths;
       rule.path = static_cast<uint32_t>(path);
       return is_known;
     }},
    {"rate", bit(Action::kLimit), read_as<read_rate, &Rule::bytes_per_second>},
    {"type", bit(Action::kEvent), read_as<read_event, &Rule::event>},
    {"for", bit(Action::kDown), read_length<&Rule::down_ns>},
    {"up", bit(Action::kDown), read_length<&Rule::up_ns>},
    {"flaps", bit(Action::kDown), read_as<read_positive, &Rule::flaps>},
};

std::string quote(std::string_view text) {
  return "'" + std::string(text) + "'";
}

std::string read_key(Rule& rule, std::string_view word, std::set<std::string_view>& seen) {
  const size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  if (equals == std::string_view::npos) return quote(word) + " is not of the form KEY=VALUE";
  for (const Key& key : kKeys) {
    if (key.name != name || (key.actions & bit(rule.action)) == 0) continue;
    if (!seen.insert(key.name).second) return quote(name) + " is given twice";
    const Trigger before = rule.trigger;
    if (key.read(rule, word.substr(equals + 1))) return "";
    const bool is_second = before != Trigger::kNone && rule.trigger == before;
    const bool is_trigger = name == "nth" || name == "every" || name == "chance" || name == "at";
    return quote(word) + (is_second && is_trigger ? " conflicts with an earlier nth=, every=, chance= or at="
                                                  : " is not a valid value");
  }
  return quote(name) + " is not a key of this fault";
}

// Says which words are missing or exclude each other; empty if the rule is complete.
std::string check_rule(const Rule& rule, const std::set<std::string_view>& seen) {
  const auto has = [&](std::string_view name) { return seen.contains(name); };
  if (rule.action == Action::kFail && !has("status")) return "status= is missing";
  if (rule.action == Action::kDelay && !has("by")) return "by= is missing";
  if (rule.action == Action::kLimit && !has("rate")) return "rate= is missing";
  if (rule.action == Action::kReorder && !has("by")) return "by= is missing";
  if (rule.action == Action::kCorrupt && !has("bytes")) return "bytes= is missing";
  if (rule.action == Action::kEvent && !has("type")) return "type= is missing";
  const bool is_always =
      rule.action == Action::kDelay || rule.action == Action::kLimit || is_of_datagrams(rule.action);
  if (rule.trigger == Trigger::kNone && !is_always)
    return "the rule does not say when the fault occurs; give nth=, every=, chance= or at=";
  if (rule.trigger == Trigger::kTime) {
    for (const std::string_view name : {"qp", "opcode", "per", "after", "times"}) {
      if (has(name))
        return quote(name) + " applies to requests, so use nth=, every= or chance= instead of at=";
    }
    if (rule.action == Action::kEvent && rule.event == IBV_EVENT_QP_FATAL)
      return "QP_FATAL occurs at a request, so give nth=, every= or chance=";
  }
  if (has("flaps") != has("up")) return "up= and flaps= must be given together";
  if (has("up") && !has("for")) return "for= is missing";
  if (rule.is_after_work && rule.far == Far::kError) return "work=done and peer=error cannot be combined";
  return "";
}

std::string read_rule(const std::vector<std::string_view>& words, Rule& rule) {
  const Verb* verb = nullptr;
  for (const Verb& known : kVerbs) {
    if (known.name == words[0]) verb = &known;
  }
  if (verb == nullptr)
    return "unknown fault; the faults are fail, error, drop, delay, limit, down, event, lose, duplicate, "
           "reorder and corrupt (to name a file with a plan, begin the path with / or .)";
  rule.action = verb->action;
  if (rule.action == Action::kError) rule.status = IBV_WC_WR_FLUSH_ERR;
  std::set<std::string_view> seen;
  for (size_t i = 1; i < words.size(); ++i) {
    if (std::string problem = read_key(rule, words[i], seen); !problem.empty()) return problem;
  }
  return check_rule(rule, seen);
}

std::string read_statement(const std::vector<std::string_view>& words, uint32_t line, FaultPlan& plan) {
  if (words[0] == "seed")
    return words.size() == 2 && read_number(words[1], plan.seed) ? "" : "seed takes one number";
  if (words[0] == "log") {
    plan.is_logged = true;
    return words.size() == 1 ? "" : "log takes no value";
  }
  if (plan.rules.size() == kMaxRules) return "the plan has more than 256 faults";
  Rule rule;
  rule.line = line;
  std::string problem = read_rule(words, rule);
  plan.rules.push_back(rule);
  return problem;
}

}  // namespace

ParsedPlan parse_plan(std::string_view text) {
  ParsedPlan parsed;
  uint32_t line = 0;
  for (const std::string_view whole : split(text, '\n')) {
    ++line;
    for (const std::string_view statement : split(whole.substr(0, whole.find('#')), ';')) {
      const auto words = split_words(statement);
      if (words.empty()) continue;
      const std::string problem = read_statement(words, line, parsed.plan);
      if (problem.empty()) continue;
      parsed.problem = "line " + std::to_string(line) + ": " + quote(words[0]) + ": " + problem;
      return parsed;
    }
  }
  return parsed;
}

RailOrders parse_rails(std::string_view text) {
  RailOrders orders;
  auto lines = split(text, '\n');
  lines.pop_back();
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto words = split_words(lines[i].substr(0, lines[i].find('#')));
    if (words.empty()) continue;
    uint32_t rail = 0;
    const bool is_known = words.size() == 2 && read_rail(words[0], rail, kEveryRail) &&
                          (words[1] == "up" || words[1] == "down");
    if (!is_known) {
      orders.problem =
          "line " + std::to_string(i + 1) + ": " + quote(lines[i]) + " is not of the form RAIL up|down";
      return orders;
    }
    const uint32_t bits = rail == kEveryRail ? (1u << kMaxDevices) - 1 : 1u << rail;
    orders.up = words[1] == "up" ? orders.up | bits : orders.up & ~bits;
    orders.down = words[1] == "down" ? orders.down | bits : orders.down & ~bits;
  }
  return orders;
}

}  // namespace verbena::softverbs::faults
