#include "chaos/round.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>

#include "chaos/folder.h"
#include "chaos/judge.h"
#include "chaos/life.h"
#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/line_channel.h"
#include "common/self_path.h"

namespace verbena::chaos {
namespace {

using nlohmann::json;
using tools::ChildEvent;

constexpr double kTellTimeoutS = 5;
constexpr double kRailsTimeoutS = 10;
constexpr unsigned kPollUs = 5000;
constexpr double kWholeRoundS = 180;  // however much moves

int rank_phase(const std::string& phase) {
  constexpr const char* kOrder[] = {"load", "init", "connect", "traffic", "agree", "close"};
  const auto at = std::find(std::begin(kOrder), std::end(kOrder), phase);
  return static_cast<int>(at - std::begin(kOrder));
}

class Round {
 public:
  Round(const RoundPlan& plan, const std::string& plugin, const RoundLimits& limits);

  RoundResult run();

 private:
  void start(size_t end, unsigned first_life);
  void handle(const ChildEvent& event);
  void handle_line(End& end, const json& line);
  void handle_exit(size_t end);
  bool is_due(const Strike& strike);
  int64_t due_ns(const Strike& strike) const { return armed_ns_ + strike.delay_ms * int64_t{1'000'000}; }
  void strike_what_is_due();
  void strike(const Strike& strike);
  void let_live_on();
  void wait_for_rails();
  bool is_over() const { return ends_[0].has_exited && ends_[1].has_exited; }
  pid_t pid(size_t end) const { return children_.pid(ends_[end].child); }
  void report_hang();

  const RoundPlan& plan_;
  const std::string& plugin_;
  const RoundLimits& limits_;
  Folder folder_;
  std::array<tools::LineChannel, kEnds> partners_{tools::LineChannel(-1), tools::LineChannel(-1)};
  tools::ChildGroup children_;
  std::array<End, kEnds> ends_;
  size_t next_strike_ = 0;
  int64_t armed_ns_ = 0;  // when the next strike's moment had come, less its delay; 0: not yet
  unsigned lives_begun_ = 1;
  RoundResult result_;
  std::vector<Struck> struck_;
};

Round::Round(const RoundPlan& plan, const std::string& plugin, const RoundLimits& limits)
    : plan_(plan), plugin_(plugin), limits_(limits), folder_(std::to_string(plan.round)) {
  std::filesystem::create_directories(folder_.path("verbs"));
  folder_.write("key", "a key that only these two ends have");
  folder_.write("rails", "* up\n");
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) throw tools::ToolError("socketpair");
  for (size_t end = 0; end < kEnds; ++end) partners_[end] = tools::LineChannel(pair[end]);
}

void Round::start(size_t end, unsigned first_life) {
  tools::ChildCommand command;
  command.executable = tools::find_self_executable().string();
  command.arguments = {"--plugin",  plugin_,
                       "--end",     std::to_string(end),
                       "--life",    std::to_string(first_life),
                       "--output",  folder_.path("end" + std::to_string(end)),
                       "--traffic", json(plan_.traffic).dump()};
  command.environment = tools::Environment::copy_own();
  for (const auto& [name, value] : plan_.settings) command.environment.set(name, value);
  command.environment.set("SOFTVERBS_DIR", folder_.path("verbs"));
  if (plan_.has_job_key) command.environment.set("VERBENA_JOB_KEY_FILE", folder_.path("key"));
  const bool has_rails = plan_.fault == Fault::kFlap || plan_.fault == Fault::kBlackout;
  if (has_rails) command.environment.set("SOFTVERBS_RAILS", folder_.path("rails"));
  if (!plan_.softverbs_faults[end].empty())
    command.environment.set("SOFTVERBS_FAULTS", plan_.softverbs_faults[end]);
  command.partner_descriptor = partners_[end].descriptor();
  ends_[end].child = children_.start(command);
  ends_[end].has_exited = false;
  ends_[end].phase.clear();
}

RoundResult Round::run() {
  const int64_t begin_ns = tools::now_ns();
  const int64_t last_ns = tools::deadline_after_s(kWholeRoundS);
  int64_t deadline_ns = tools::deadline_after_s(limits_.hang_s);
  for (size_t end = 0; end < kEnds; ++end) start(end, 1);
  while (!is_over()) {
    strike_what_is_due();
    int64_t until_ns = deadline_ns;
    if (armed_ns_ != 0) until_ns = std::min(until_ns, due_ns(plan_.strikes[next_strike_]));
    const ChildEvent event = children_.wait_event(until_ns);
    if (event.kind != ChildEvent::Kind::kTimeout) {
      handle(event);
      deadline_ns = std::min(last_ns, tools::deadline_after_s(limits_.hang_s));
    }
    if (tools::now_ns() < deadline_ns) continue;
    report_hang();
    break;
  }
  children_.kill_all();
  judge(plan_, ends_, struck_, folder_, result_);
  result_.seconds = static_cast<double>(tools::now_ns() - begin_ns) * 1e-9;
  return result_;
}

void Round::handle(const ChildEvent& event) {
  for (size_t end = 0; end < kEnds; ++end) {
    if (ends_[end].child != event.child) continue;
    if (event.kind == ChildEvent::Kind::kExit) return handle_exit(end);
    handle_line(ends_[end], json::parse(event.line));
    return let_live_on();
  }
}

void Round::handle_line(End& end, const json& line) {
  if (line.contains("phase")) {
    end.phase = line["phase"].get<std::string>();
    end.percent = line["percent"].get<unsigned>();
  }
  if (line.contains("result")) end.lives[line["life"].get<unsigned>()] = line;
  if (line.contains("error") && !line.contains("result")) end.last_words = line["error"].get<std::string>();
  if (line.contains("finished")) end.has_finished = true;
}

// One that was killed is replaced; the other hears what its own partner cannot tell it any more.
void Round::handle_exit(size_t number) {
  End& end = ends_[number];
  end.has_exited = true;
  end.exit = children_.describe_exit(end.child);
  if (!end.is_killed || end.is_replaced) return;
  partners_[number].send_line(Partner::make_line(1, Partner::kGone, true),
                              tools::deadline_after_s(kTellTimeoutS));
  end.is_replaced = true;
  start(number, 2);
  let_live_on();
}

bool Round::is_due(const Strike& strike) {
  const End& end = ends_[strike.end];
  const int rank = rank_phase(end.phase) - rank_phase(strike.phase);
  if (armed_ns_ == 0) {
    if (end.phase.empty() || rank < 0 || (rank == 0 && end.percent < strike.percent)) return false;
    armed_ns_ = tools::now_ns();
  }
  return tools::now_ns() >= due_ns(strike);
}

void Round::strike_what_is_due() {
  while (next_strike_ < plan_.strikes.size()) {
    const Strike& next = plan_.strikes[next_strike_];
    const bool is_late = ends_[next.end].lives.count(1) != 0;
    if (is_late || is_due(next)) {
      if (!is_late || !next.is_harm) strike(next);
      ++next_strike_;
      armed_ns_ = 0;
    } else {
      return;
    }
  }
}

void Round::strike(const Strike& strike) {
  struck_.push_back({tools::now_ns(), &strike});
  result_.strikes += strike.is_harm ? 1 : 0;
  switch (strike.kind) {
    case Strike::Kind::kRails:
      folder_.write("rails", strike.rails);
      return;
    case Strike::Kind::kKill:
      ends_[strike.end].is_killed = true;
      kill(pid(strike.end), SIGKILL);
      return;
    case Strike::Kind::kStop:
      kill(pid(strike.end), SIGSTOP);
      return;
    case Strike::Kind::kContinue:
      kill(pid(strike.end), SIGCONT);
      return;
  }
}

// When a life of both has ended, one way or another. What replaces a killed one begins its own.
void Round::let_live_on() {
  if (lives_begun_ >= plan_.traffic.lives) return;
  const auto begins_alone = [this](const End& end) { return end.is_replaced && lives_begun_ == 1; };
  for (const End& end : ends_)
    if (end.lives.count(lives_begun_) == 0 && !begins_alone(end)) return;
  folder_.write("rails", "* up\n");
  if (plan_.fault == Fault::kBlackout && lives_begun_ == 1) wait_for_rails();
  for (const End& end : ends_)
    if (!begins_alone(end)) children_.send_line(end.child, "go", tools::deadline_after_s(kTellTimeoutS));
  ++lives_begun_;
}

// A connection that is made before an end has heard of its rails rightly fails.
void Round::wait_for_rails() {
  const int64_t deadline_ns = tools::deadline_after_s(kRailsTimeoutS);
  const auto rails = static_cast<size_t>(plan_.traffic.rails);
  for (const char* end : {"end0", "end1"}) {
    while (folder_.find_lines(end, "port is up again").size() < rails && tools::now_ns() < deadline_ns)
      usleep(kPollUs);
  }
}

void Round::report_hang() {
  std::string text = "nothing happens for " + tools::format_seconds(limits_.hang_s);
  for (size_t end = 0; end < kEnds; ++end) {
    if (ends_[end].has_exited) continue;
    text += "; end " + std::to_string(end) + " (pid " + std::to_string(pid(end)) + ") in \"" +
            ends_[end].phase + "\", " + std::to_string(ends_[end].percent) + " %, life " +
            std::to_string(ends_[end].lives.size() + 1);
  }
  result_.has_hung = true;
  result_.problems.push_back(text);
  if (limits_.hold_s == 0) return;
  std::fprintf(stderr, "%s\n", text.c_str());
  folder_.keep();
  usleep(static_cast<useconds_t>(limits_.hold_s * 1e6));
}

}  // namespace

RoundResult run_round(const RoundPlan& plan, const std::string& plugin, const RoundLimits& limits) {
  return Round(plan, plugin, limits).run();
}

}  // namespace verbena::chaos
