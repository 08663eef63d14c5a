#include "verbena-info/check.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/environment.h"
#include "verbena-info/advice.h"
#include "verbena-info/child.h"
#include "verbena-info/text.h"

namespace verbena::tools::info {
namespace {

constexpr const char* kConnectTimeoutMs = "10000";
constexpr const char* kStagedThreshold = "65536";  // so that messages of both kinds go over one connection

// The environment of the tests. It makes a failing rail fail at once, even if the user's settings would hide
// that.
Environment make_environment() {
  Environment environment = Environment::copy_own();
  environment.set("VERBENA_FAILOVER", "0");
  environment.set("VERBENA_UNPACK", "0");
  environment.set_default("VERBENA_CONNECT_TIMEOUT_MS", kConnectTimeoutMs);
  return environment;
}

// For the plugin's half of UNPACK; the CPU does the GPU's half. Without a GPU, the slots are in host memory.
Environment make_staged_environment() {
  Environment environment = make_environment();
  environment.set("VERBENA_UNPACK", "1");
  environment.set("VERBENA_UNPACK_THRESHOLD", kStagedThreshold);
  environment.set("CUDA_VISIBLE_DEVICES", "");
  return environment;
}

Check make_check(const std::string& what, const std::string& with, CheckStatus status,
                 const std::string& detail, const std::string& remedy = "") {
  return {what, with, status, detail, remedy, TestFault::kNone, std::nullopt};
}

// The check of the plugin itself, which needs no test.
Check check_plugin(const Document& document) {
  const std::string& problem = document.problem.empty() ? document.plugin.problem : document.problem;
  if (problem.empty())
    return make_check("plugin", "", CheckStatus::kOk,
                      "net tables " + format_versions(document.plugin.net_tables) + ", settings good");
  return make_check("plugin", "", CheckStatus::kFailed, problem,
                    document.advice.empty() ? "" : document.advice[0].remedy);
}

class Checks {
 public:
  Checks(const Document& document, const InfoOptions& options, std::function<void(Check)> add)
      : document_(document), options_(options), add_(std::move(add)) {}

  void check_port(const Port& port);
  void check_rail_sets();

 private:
  // Returns true if it works.
  bool check_way(const std::string& what, const std::string& with, const RailRole& role);
  bool check_memory(const Nic& nic, int gpu) {
    return check_way(nic.name, gpu == kHostMemory ? "host memory" : "GPU " + std::to_string(gpu),
                     {{nic.index}, gpu});
  }
  const Port* find_culprit(const std::vector<int>& indexes) const;

  const Document& document_;
  const InfoOptions& options_;
  std::function<void(Check)> add_;
  const Environment environment_ = make_environment(), staged_environment_ = make_staged_environment();
  std::set<int> broken_;  // rails that do not work alone
};

bool Checks::check_way(const std::string& what, const std::string& with, const RailRole& role) {
  const ChildAnswer answer =
      ask_child(format_role(role), options_, role.is_staged ? staged_environment_ : environment_);
  Check check = make_check(what, with, CheckStatus::kOk, "");
  check.tests.emplace();
  for (const ChildLine& line : answer.lines) {
    if (!line.test) continue;
    const Test& test = check.tests->emplace_back(*line.test);
    if (!test.ok) {
      check.fault = test.fault;
      check.detail = test.name + ": " + test.detail;
    } else if (test.name != kCloseTest) {
      check.detail += (check.detail.empty() ? "" : ", ") + test.name +
                      (test.detail.empty() ? "" : " (" + test.detail + ")");
    }
  }
  if (check.fault == TestFault::kNone && answer.fault != TestFault::kNone) {
    check.fault = answer.fault;
    check.detail =
        "after " + (check.detail.empty() ? "nothing" : check.detail) + ": the process " + answer.problem;
  }
  const bool works = check.fault == TestFault::kNone;
  if (!works) {
    check.status = CheckStatus::kFailed;
    if (role.devices.size() == 1) broken_.insert(role.devices[0]);
    if (const Port* port = find_culprit(role.devices))
      check.remedy = suggest_for_test(check.fault, *port, role.gpu != kHostMemory);
  }
  add_(std::move(check));
  return works;
}

// The first of these devices that does not work alone either.
const Port* Checks::find_culprit(const std::vector<int>& indexes) const {
  const Port* first = nullptr;
  for (const Port& port : document_.ports) {
    if (!port.nic || std::find(indexes.begin(), indexes.end(), port.nic->index) == indexes.end()) continue;
    if (broken_.contains(port.nic->index)) return &port;
    if (first == nullptr) first = &port;
  }
  return first;
}

void Checks::check_port(const Port& port) {
  const Nic& nic = *port.nic;
  if (check_memory(nic, kHostMemory)) {
    check_way(nic.name, "staged", {{nic.index}, kHostMemory, true});
  } else {
    add_(make_check(nic.name, "staged", CheckStatus::kSkipped, "the rail failed its self-test"));
  }
  for (const Gpu& gpu : document_.gpus.devices) {
    if (nic.gpu_memory.path != GpuPath::kNone) {
      check_memory(nic, gpu.index);
    } else {
      add_(make_check(nic.name, "GPU " + std::to_string(gpu.index), CheckStatus::kSkipped,
                      "NCCL copies GPU data through host memory: " + nic.gpu_memory.why,
                      nic.gpu_memory.remedy));
    }
  }
}

// Checks only sets that NCCL may join; the plugin has been asked already.
void Checks::check_rail_sets() {
  if (!document_.nccl_view) return;
  for (const RailSet& set : document_.nccl_view->rail_sets) {
    if (find_culprit(set.members) == nullptr) continue;  // devices of another plugin
    const std::string members = "rails " + join(set.members, "+");
    if (set.is_joined()) {
      check_way(members, "joined", {set.members});
    } else {
      add_(make_check(members, "joined", CheckStatus::kSkipped, "not joined: " + set.refused,
                      "VERBENA_MERGE_NICS=1 lets NCCL join rails that are close to each other"));
    }
  }
}

}  // namespace

void run_checks(Document& document, const InfoOptions& options,
                const std::function<void(const Check& check)>& show) {
  document.checks.emplace();
  const auto add = [&](Check check) {
    show(check);
    document.checks->push_back(std::move(check));
  };
  add(check_plugin(document));
  for (const Port& port : document.ports) {
    if (!port.is_usable())
      add(make_check(port.title(), "", CheckStatus::kSkipped, "not used: " + port.why_not,
                     suggest_for_port(port)));
  }
  if (!document.plugin.problem.empty()) return;
  Checks run(document, options, add);
  for (const Port& port : document.ports) {
    if (port.is_usable()) run.check_port(port);
  }
  run.check_rail_sets();
  if (document.gpus.devices.empty())
    add(make_check("GPU memory", "", CheckStatus::kSkipped, document.gpus.problem));
}

}  // namespace verbena::tools::info
