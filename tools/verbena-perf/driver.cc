#include "verbena-perf/driver.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/self_path.h"
#include "verbena-perf/report.h"

namespace verbena::tools::perf {
namespace {

constexpr size_t kWorkers = 2;
constexpr const char* kRoles[kWorkers] = {"worker 0", "worker 1"};
// The workers' own deadlines come first: they know better what did not happen.
constexpr double kGraceS = 3;
// After one worker has failed, the other may tell the cause.
constexpr double kLastWordsS = 0.3;

Environment make_environment(const Options& options) {
  Environment environment = Environment::copy_own();
  // The workers unpack on the CPU, so the plugin must keep its handle in host memory.
  environment.set("CUDA_VISIBLE_DEVICES", "");
  if (options.unpack >= 0) environment.set("VERBENA_UNPACK", std::to_string(options.unpack));
  if (options.rails > 1) environment.set_default("VERBENA_MERGE_NICS", "1");
  if (!options.threshold.empty()) environment.set("VERBENA_UNPACK_THRESHOLD", options.threshold);
  if (options.rails > 1) environment.set_default("SOFTVERBS_DEVICES", std::to_string(options.rails));
  return environment;
}

class Driver {
 public:
  explicit Driver(const Options& options) : options_(options), report_(options) {}

  void start(int argc, const char* const* argv);
  int run();

 private:
  // A status to leave with, once there is one.
  std::optional<int> handle_event(const ChildEvent& event);
  void handle_line(size_t worker, const nlohmann::json& line);
  void collect_last_words();
  int fail(const std::string& why);

  const Options& options_;
  Report report_;
  ChildGroup workers_;
  std::array<std::string, kWorkers> phases_;
  std::array<std::string, kWorkers> errors_;
  std::array<bool, kWorkers> done_{};
  bool progressed_ = false;
};

void Driver::start(int argc, const char* const* argv) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    throw ToolError(std::string("socketpair: ") + std::strerror(errno));
  }
  ChildCommand command;
  command.executable = find_self_executable().string();
  command.environment = make_environment(options_);
  if (options_.verbose) {
    for (const std::string& setting : command.environment.list_applied()) {
      std::fprintf(stderr, "# %s\n", setting.c_str());
    }
  }
  for (size_t worker = 0; worker < kWorkers; ++worker) {
    command.arguments.assign(argv + 1, argv + argc);
    command.arguments.push_back("--child=" + std::to_string(worker));
    command.partner_descriptor = pair[worker];
    workers_.start(command);
    phases_[worker] = "start";
  }
  close(pair[0]);
  close(pair[1]);
}

int Driver::run() {
  int64_t deadline_ns = deadline_after_s(options_.timeout_s + kGraceS);
  for (;;) {
    const ChildEvent event = workers_.wait_event(deadline_ns);
    progressed_ = false;
    if (const auto status = handle_event(event)) return *status;
    if (progressed_) deadline_ns = deadline_after_s(options_.timeout_s + kGraceS);
  }
}

std::optional<int> Driver::handle_event(const ChildEvent& event) {
  switch (event.kind) {
    case ChildEvent::Kind::kTimeout:
      return fail("no progress in " + format_seconds(options_.timeout_s));
    case ChildEvent::Kind::kLine:
      handle_line(event.child, nlohmann::json::parse(event.line));
      if (!errors_[event.child].empty()) {
        collect_last_words();
        return fail("");
      }
      return std::nullopt;
    case ChildEvent::Kind::kExit:
      break;
  }
  if (!done_[event.child] || workers_.exit_status(event.child) != kExitOk) {
    collect_last_words();
    return fail(std::string(kRoles[event.child]) + ": " + workers_.describe_exit(event.child));
  }
  for (size_t worker = 0; worker < kWorkers; ++worker) {
    if (!workers_.has_exited(worker)) return std::nullopt;
  }
  report_.finish();
  return report_.wrong_bytes() == 0 ? kExitOk : kExitWrongData;
}

void Driver::handle_line(size_t worker, const nlohmann::json& line) {
  if (line.contains("phase")) {
    phases_[worker] = line["phase"].get<std::string>();
    progressed_ = true;
  }
  if (line.contains("device")) report_.add_device(line["device"]);
  if (line.contains("row")) report_.add_row(line["row"]);
  if (line.contains("error")) errors_[worker] = line["error"].get<std::string>();
  if (line.contains("done")) done_[worker] = true;
}

void Driver::collect_last_words() {
  const int64_t deadline_ns = deadline_after_s(kLastWordsS);
  for (;;) {
    const ChildEvent event = workers_.wait_event(deadline_ns);
    if (event.kind == ChildEvent::Kind::kTimeout) return;
    if (event.kind == ChildEvent::Kind::kLine) handle_line(event.child, nlohmann::json::parse(event.line));
  }
}

int Driver::fail(const std::string& why) {
  std::string line = why;
  for (size_t worker = 0; worker < kWorkers; ++worker) {
    if (done_[worker]) continue;
    if (!line.empty()) line += "; ";
    line += std::string(kRoles[worker]) + " (pid " + std::to_string(workers_.pid(worker)) + ") in \"" +
            phases_[worker] + "\"";
    if (!errors_[worker].empty()) line += ": " + errors_[worker];
  }
  workers_.kill_all();
  std::fflush(stdout);
  std::fprintf(stderr, "verbena-perf: %s\n", line.c_str());
  return kExitFailed;
}

}  // namespace

int run_driver(const Options& options, int argc, const char* const* argv) {
  try {
    Driver driver(options);
    driver.start(argc, argv);
    return driver.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "verbena-perf: %s\n", error.what());
    return kExitFailed;
  }
}

}  // namespace verbena::tools::perf
