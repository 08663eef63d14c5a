#include "verbena-perf/driver.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/progress.h"
#include "common/self_path.h"
#include "verbena-perf/comparison.h"
#include "verbena-perf/meeting.h"
#include "verbena-perf/report.h"

namespace verbena::tools::perf {
namespace {

constexpr size_t kWorkers = 2;
constexpr const char* kRoles[kWorkers] = {"worker 0", "worker 1"};
constexpr const char* kHostRoles[kWorkers] = {"the client's worker", "the server's worker"};
// The workers' own deadlines are earlier, because a worker knows better what it waits for.
constexpr double kGraceS = 3;
constexpr double kRelayTimeoutS = 10;
constexpr double kNextRunWaitS = 60;

Environment make_environment(const PerfOptions& options) {
  Environment environment = Environment::copy_own();
  // The workers unpack on the CPU, so the plugin must keep its handle in host memory.
  environment.set("CUDA_VISIBLE_DEVICES", "");
  if (options.unpack >= 0) environment.set("VERBENA_UNPACK", std::to_string(options.unpack));
  if (options.rails > 1) environment.set_default("VERBENA_MERGE_NICS", "1");
  if (!options.threshold.empty()) {
    environment.set("VERBENA_UNPACK_THRESHOLD", options.threshold);
    environment.set_default("VERBENA_UNPACK", "1");  // the threshold has no effect without it
  }
  if (options.rails > 1) environment.set_default("SOFTVERBS_DEVICES", std::to_string(options.rails));
  if (options.transport == Transport::kDatagram) environment.set("VERBENA_TRANSPORT", "datagram");
  if (options.transport == Transport::kNcclIb) choose_same_verbs(environment, options.plugin);
  return environment;
}

// A worker is a process of this host, or of the other host, over the connection to its driver, which forwards
// all its lines. So both drivers see the same run, report it, and exit with the same status.
class Driver {
 public:
  Driver(const PerfOptions& options, Report& report)
      : options_(options),
        report_(report),
        roles_(options.has_two_hosts() ? kHostRoles : kRoles),
        progress_(options.sizes_bytes.size()) {}

  void start_both(int argc, const char* const* argv);
  void start_one(int argc, const char* const* argv, Meeting meeting);
  int run();

 private:
  void start_worker(size_t worker, int argc, const char* const* argv, int partner_descriptor);
  // Returns the exit status when the run is over.
  std::optional<int> handle_event(const ChildEvent& event);
  void handle_line(const ChildEvent& event);
  void show_progress(const std::string& phase);
  void relay(size_t worker, const std::string& line);
  void collect_last_words();
  int fail(const std::string& why);
  std::string describe(size_t worker) const;

  const PerfOptions& options_;
  Report& report_;
  const char* const* roles_;
  ChildGroup workers_;
  std::array<std::string, kWorkers> phases_{"start", "start"};
  std::array<std::string, kWorkers> errors_;
  std::array<bool, kWorkers> done_{};    // the worker has closed everything
  std::array<bool, kWorkers> exited_{};  // and exited with status 0
  bool progressed_ = false;
  Progress progress_;
};

void Driver::start_worker(size_t worker, int argc, const char* const* argv, int partner_descriptor) {
  ChildCommand command;
  command.executable = find_self_executable().string();
  command.environment = make_environment(options_);
  command.arguments.assign(argv + 1, argv + argc);
  if (options_.server) {
    command.arguments.insert(command.arguments.end(), options_.workload_arguments.begin(),
                             options_.workload_arguments.end());
  }
  command.arguments.insert(command.arguments.end(), options_.run_arguments.begin(),
                           options_.run_arguments.end());
  command.arguments.push_back("--child=" + std::to_string(worker));
  command.partner_descriptor = partner_descriptor;
  if (options_.verbose) {
    for (const std::string& setting : command.environment.list_applied()) {
      std::fprintf(stderr, "# %s\n", setting.c_str());
    }
  }
  workers_.start(command);
}

void Driver::start_both(int argc, const char* const* argv) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    throw ToolError(std::string("socketpair: ") + std::strerror(errno));
  }
  const LineChannel ends[kWorkers] = {LineChannel(pair[0]), LineChannel(pair[1])};
  for (size_t worker = 0; worker < kWorkers; ++worker) start_worker(worker, argc, argv, pair[worker]);
}

void Driver::start_one(int argc, const char* const* argv, Meeting meeting) {
  const size_t own = options_.server ? 1 : 0;
  for (size_t worker = 0; worker < kWorkers; ++worker) {
    if (worker == own) {
      start_worker(worker, argc, argv, meeting.workers.channel.descriptor());
    } else {
      workers_.adopt(std::move(meeting.drivers.channel));
    }
  }
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
      handle_line(event);
      break;
    case ChildEvent::Kind::kExit:
      if (exited_[event.child]) return std::nullopt;  // the other host has reported it already
      exited_[event.child] = done_[event.child] && workers_.exit_status(event.child) == kExitOk;
      if (!exited_[event.child] && errors_[event.child].empty()) {
        errors_[event.child] = workers_.describe_exit(event.child);
      }
      relay(event.child, exited_[event.child] ? R"({"exited":true})"
                                              : nlohmann::json{{"error", errors_[event.child]}}.dump());
      break;
  }
  if (!errors_[event.child].empty()) {
    collect_last_words();
    return fail("");
  }
  if (!exited_[0] || !exited_[1]) return std::nullopt;
  report_.finish();
  return report_.wrong_bytes() == 0 ? kExitOk : kExitWrongData;
}

void Driver::handle_line(const ChildEvent& event) {
  const size_t worker = event.child;
  const nlohmann::json line = nlohmann::json::parse(event.line);
  relay(worker, event.line);
  if (line.contains("phase")) {
    phases_[worker] = line["phase"].get<std::string>();
    progressed_ = true;
    show_progress(phases_[worker]);
    return;
  }
  progress_.clear();  // the code below may print
  if (line.contains("device")) report_.add_device(line["device"]);
  if (line.contains("row")) report_.add_row(line["row"]);
  if (line.contains("error")) errors_[worker] = line["error"].get<std::string>();
  if (line.contains("done")) done_[worker] = true;
  if (line.contains("exited")) exited_[worker] = true;
}

void Driver::show_progress(const std::string& phase) {
  std::string text = phase;
  if (options_.against) {
    text = "run " + std::to_string(options_.run + 1) + " of " + std::to_string(options_.count_runs()) + ", " +
           describe_transport(options_.transport) + ": " + phase;
  }
  progress_.show(report_.rows().size(), text);
}

// Forwards a line of this host's worker to the other host's driver. If that one is gone, the end of its
// connection is noticed elsewhere.
void Driver::relay(size_t worker, const std::string& line) {
  const size_t other = 1 - worker;
  if (workers_.is_adopted(other)) workers_.send_line(other, line, deadline_after_s(kRelayTimeoutS));
}

void Driver::collect_last_words() {
  const int64_t deadline_ns = deadline_after_s(options_.last_words_s);
  for (;;) {
    if (!errors_[0].empty() && !errors_[1].empty()) return;
    const ChildEvent event = workers_.wait_event(deadline_ns);
    if (event.kind == ChildEvent::Kind::kTimeout) return;
    if (event.kind == ChildEvent::Kind::kLine) handle_line(event);
  }
}

std::string Driver::describe(size_t worker) const {
  std::string text = roles_[worker];
  if (!workers_.is_adopted(worker)) text += " (pid " + std::to_string(workers_.pid(worker)) + ")";
  text += " in \"" + phases_[worker] + "\"";
  return errors_[worker].empty() ? text : text + ": " + errors_[worker];
}

int Driver::fail(const std::string& why) {
  std::string line = why;
  for (size_t worker = 0; worker < kWorkers; ++worker) {
    if (done_[worker] && errors_[worker].empty()) continue;
    if (!line.empty()) line += "; ";
    line += describe(worker);
    // Tells the other host now, so that it does not wait for its own deadline.
    if (errors_[worker].empty()) relay(worker, nlohmann::json{{"error", "aborted: " + line}}.dump());
  }
  workers_.kill_all();
  progress_.clear();
  std::fflush(stdout);
  std::fprintf(stderr, "verbena-perf: %s\n", line.c_str());
  return kExitFailed;
}

// Delivers the result of one run, or of all runs of a comparison, as the options say.
int deliver(Result& result, const PerfOptions& options, const Report& last, const Comparison& comparison,
            int status) {
  result.status = last.wrong_bytes() == 0 ? "ok" : "wrong data";
  if (options.against) {
    comparison.print(options);
    comparison.fill(result, options);
  } else {
    last.fill(result);
  }
  return deliver_result(result, options.output, status);
}

// Returns true if the run gave figures.
bool is_complete(const Report& report, int status) {
  return status == kExitOk || report.wrong_bytes() != 0;
}

int run_all(const PerfOptions& options, int argc, const char* const* argv) {
  Comparison comparison;
  Result result = begin_result("verbena-perf", argc, argv);
  int status = kExitOk;
  for (unsigned run = 0;; ++run) {
    const PerfOptions run_options = make_run_options(options, run);
    Report report(run_options);
    status = run_once(run_options, report, argc, argv);
    comparison.add_run(run_options.transport, report);
    if (!is_complete(report, status)) return status;
    if (status == kExitOk && run + 1 < options.count_runs()) continue;
    return deliver(result, run_options, report, comparison, status);
  }
}

// Serves all runs of one client; its first run says how many there are.
int serve(const PerfOptions& options, int argc, const char* const* argv) {
  Comparison comparison;
  Result result = begin_result("verbena-perf", argc, argv);
  std::optional<TcpListener> listener(std::in_place, options.port);
  std::fprintf(stderr, "# waiting for a client at port %d\n", listener->port());
  for (unsigned run = 0;; ++run) {
    PerfOptions run_options = options;
    run_options.run = run;
    if (run > 0) run_options.wait_s = kNextRunWaitS;
    Meeting meeting = await_client(*listener, run_options);
    const bool is_last = run + 1 == run_options.count_runs();
    if (is_last) listener.reset();
    Report report(run_options);
    Driver driver(run_options, report);
    driver.start_one(argc, argv, std::move(meeting));
    const int status = driver.run();
    comparison.add_run(run_options.transport, report);
    if (!is_complete(report, status)) return status;
    if (is_last || status != kExitOk) return deliver(result, run_options, report, comparison, status);
  }
}

}  // namespace

int run_once(const PerfOptions& options, Report& report, int argc, const char* const* argv) {
  Driver driver(options, report);
  if (options.client.empty()) {
    driver.start_both(argc, argv);
  } else {
    driver.start_one(argc, argv, call_server(options));
  }
  return driver.run();
}

int run_driver(const PerfOptions& options, int argc, const char* const* argv) {
  return report_errors("verbena-perf", [&] {
    return options.server ? serve(options, argc, argv) : run_all(options, argc, argv);
  });
}

namespace {

constexpr const char* kKernelDevices = "/sys/class/infiniband";
constexpr const char* kSoftverbs = "softverbs";

bool has_kernel_devices() {
  std::error_code error;
  return std::filesystem::directory_iterator(kKernelDevices, error) != std::filesystem::directory_iterator();
}

}  // namespace

void choose_same_verbs(Environment& environment, const std::string& plugin) {
  const std::string* const chosen = environment.find("VERBENA_IBVERBS_LIB");
  const bool is_default = chosen == nullptr || chosen->empty();
  if (is_default && has_kernel_devices()) return;
  std::filesystem::path folder;
  if (is_default || *chosen == kSoftverbs) {
    folder = std::filesystem::path(plugin).parent_path() / kSoftverbs;
  } else {
    folder = std::filesystem::path(*chosen).parent_path();
  }
  if (folder.empty()) return;
  const std::string* const before = environment.find("LD_LIBRARY_PATH");
  environment.set("LD_LIBRARY_PATH", before == nullptr ? folder.string() : folder.string() + ":" + *before);
}

}  // namespace verbena::tools::perf
