#include "verbena-info/check.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "common/environment.h"
#include "common/error.h"
#include "verbena-info/advice.h"
#include "verbena-info/check_advice.h"
#include "verbena-info/children.h"
#include "verbena-info/rail_test.h"
#include "verbena-info/test_memory.h"
#include "verbena-info/text_part.h"

namespace verbena::tools::info {
namespace {

constexpr double kGraceS = 3;
constexpr const char* kConnectTimeoutMs = "10000";
constexpr const char* kStagedThreshold = "65536";  // so that messages of both kinds go over one connection

// So that a rail that fails is seen to fail, at once, whatever the job's settings would make of it.
Environment make_environment() {
  Environment environment = Environment::copy_own();
  environment.set("VERBENA_FAILOVER", "0");
  environment.set("VERBENA_UNPACK", "0");
  environment.set_default("VERBENA_CONNECT_TIMEOUT_MS", kConnectTimeoutMs);
  return environment;
}

// The plugin's half of UNPACK, with the CPU for the GPU's: without one, its slots lie in host memory.
Environment make_staged_environment() {
  Environment environment = make_environment();
  environment.set("VERBENA_UNPACK", "1");
  environment.set("VERBENA_UNPACK_THRESHOLD", kStagedThreshold);
  environment.set("CUDA_VISIBLE_DEVICES", "");
  return environment;
}

Json make_check(const std::string& what, const std::string& with, const char* status,
                const std::string& detail, const std::string& remedy = "") {
  return {{"what", what},
          {"with", text_or_null(with)},
          {"status", status},
          {"detail", detail},
          {"try", text_or_null(remedy)}};
}

// What a test is about: its line's first words, the role of its process, the devices of which a remedy names
// one.
struct Subject {
  std::string what, with;
  RailRole role;
  std::vector<const Json*> devices;  // of the document
};

// The one that the words are about, where there are several.
const Json& find_culprit(const Subject& subject, const std::string& words) {
  for (const Json* device : subject.devices) {
    if (words.find("rail " + read_text(*device, "device") + ":") != std::string::npos) return *device;
  }
  return *subject.devices[0];
}

Json check_way(const Subject& subject, const Options& options, const Environment& environment) {
  const ChildAnswer answer =
      ask_child(format_role(subject.role), options, environment, options.timeout_s + kGraceS);
  Json check = make_check(subject.what, subject.with, "ok", "");
  check["tests"] = answer.lines;
  check["wrong_data"] = false;
  std::string detail;
  for (const Json& test : answer.lines) {
    const std::string name = read_text(test, "test"), words = read_text(test, "detail");
    if (!test.value("ok", false)) {
      check["status"] = "failed";
      check["wrong_data"] = test.value("wrong_data", false);
      detail = name + ": " + words;
      break;
    }
    if (name != "close")
      detail += (detail.empty() ? "" : ", ") + name + (words.empty() ? "" : " (" + words + ")");
  }
  if (check["status"] == "ok" && !answer.problem.empty()) {
    check["status"] = "failed";
    detail = "after " + (detail.empty() ? "nothing" : detail) + ": the process " + answer.problem;
  }
  check["detail"] = detail;
  if (check["status"] != "ok")
    check["try"] = suggest_remedy(detail, find_culprit(subject, detail), subject.role.gpu);
  return check;
}

// What is known without a test.
Json list_found(const Json& document) {
  Json checks = Json::array();
  const std::string problem = read_text(document, "problem");
  const std::string plugin_problem = read_text(document["plugin"], "problem");
  if (problem.empty() && plugin_problem.empty()) {
    checks.push_back(
        make_check("plugin", "", "ok",
                   "net tables " + format_versions(document["plugin"]["net_tables"]) + ", settings good"));
  } else {
    const Json& advice = document["advice"];
    checks.push_back(make_check("plugin", "", "failed", problem.empty() ? plugin_problem : problem,
                                advice.empty() ? "" : read_text(advice[0], "try")));
  }
  for (const Json& device : document["devices"]) {
    if (device["usable"].get<bool>()) continue;
    checks.push_back(make_check(name_port(device), "", "skipped", "not used: " + read_text(device, "why_not"),
                                suggest_for_port(device)));
  }
  return checks;
}

class Checks {
 public:
  Checks(const Json& document, const Options& options, std::function<void(Json)> add)
      : document_(document), options_(options), add_(std::move(add)) {}

  void check_device(const Json& device);
  void check_rail_sets();

 private:
  bool check_memory(const Json& device, int gpu) {
    const std::string with = gpu == kHostMemory ? "host memory" : "GPU " + std::to_string(gpu);
    Json check = check_way({read_text(device, "name"), with, {{device["index"]}, gpu}, {&device}}, options_,
                           environment_);
    const bool is_ok = check["status"] == "ok";
    add_(std::move(check));
    return is_ok;
  }
  std::vector<const Json*> find_devices(const Json& indexes) const;

  const Json& document_;
  const Options& options_;
  std::function<void(Json)> add_;
  const Environment environment_ = make_environment(), staged_environment_ = make_staged_environment();
};

void Checks::check_device(const Json& device) {
  const std::string name = read_text(device, "name");
  if (check_memory(device, kHostMemory)) {
    const RailRole staged{{device["index"]}, kHostMemory, true};
    add_(check_way({name, "staged", staged, {&device}}, options_, staged_environment_));
  } else {
    add_(make_check(name, "staged", "skipped", "the rail does not work as it is"));
  }
  const Json& memory = device["gpu_memory"];
  for (const Json& gpu : document_["gpus"]["devices"]) {
    if (read_text(memory, "path") != "none") {
      check_memory(device, gpu["index"]);
    } else {
      add_(make_check(name, "GPU " + gpu["index"].dump(), "skipped",
                      "NCCL goes through host memory: " + read_text(memory, "why"),
                      read_text(memory, "try")));
    }
  }
}

std::vector<const Json*> Checks::find_devices(const Json& indexes) const {
  std::vector<const Json*> found;
  for (const Json& device : document_["devices"]) {
    const bool is_one = device["usable"] == true &&
                        std::find(indexes.begin(), indexes.end(), device["index"]) != indexes.end();
    if (is_one) found.push_back(&device);
  }
  return found;
}

// Only what NCCL may join: the plugin has been asked already.
void Checks::check_rail_sets() {
  const Json& view = document_["nccl_view"];
  if (view.is_null()) return;
  for (const Json& set : view["rail_sets"]) {
    const std::string members = "rails " + join(set["members"], "+");
    const std::vector<const Json*> devices = find_devices(set["members"]);
    if (devices.empty()) continue;  // of another plugin than ours
    if (set.contains("refused")) {
      add_(make_check(members, "joined", "skipped", "not joined: " + read_text(set, "refused"),
                      "VERBENA_MERGE_NICS=1 lets NCCL join rails that it finds at one place"));
    } else {
      const RailRole joined{set["members"].get<std::vector<int>>()};
      add_(check_way({members, "joined", joined, devices}, options_, environment_));
    }
  }
}

}  // namespace

void run_checks(Json& document, const Options& options, const std::function<void(const Json& check)>& show) {
  Json& checks = document["checks"] = Json::array();
  const auto add = [&](Json check) {
    show(check);
    checks.push_back(std::move(check));
  };
  for (const Json& check : list_found(document)) add(check);
  if (!document["plugin"]["problem"].is_null()) return;
  Checks run(document, options, add);
  for (const Json& device : document["devices"]) {
    if (device["usable"].get<bool>()) run.check_device(device);
  }
  run.check_rail_sets();
  if (document["gpus"]["devices"].empty())
    add(make_check("GPU memory", "", "skipped", read_text(document["gpus"], "problem")));
}

std::string format_check(const Json& document, const Json& check) {
  constexpr size_t kStatusWidth = 9, kLeastWidth = 28, kWithWidth = 13, kBetween = 2;
  size_t width = kLeastWidth;
  for (const Json& device : document["devices"]) {
    // As the plugin calls it, or "DEVICE port N" where the plugin does not use it.
    width =
        std::max({width, read_text(device, "name").size() + kBetween, name_port(device).size() + kBetween});
  }
  const std::string status = check["status"] == "failed" ? "FAILED" : read_text(check, "status");
  std::string line = pad(status, kStatusWidth) + pad(read_text(check, "what"), width) +
                     pad(read_text(check, "with"), kWithWidth) + read_text(check, "detail");
  if (!read_text(check, "try").empty()) line += "  -> " + read_text(check, "try");
  return line + "\n";
}

std::string format_verdict(const Json& document) {
  const Json& checks = document["checks"];
  const auto count = [&](const char* status) {
    return std::to_string(
        std::count_if(checks.begin(), checks.end(), [&](const Json& c) { return c["status"] == status; }));
  };
  return "# " + count("ok") + " ok, " + count("failed") + " failed, " + count("skipped") + " skipped\n";
}

int judge_checks(const Json& document) {
  int status = kExitOk;
  for (const Json& check : document["checks"]) {
    if (check.value("wrong_data", false)) return kExitWrongData;
    if (check["status"] == "failed") status = kExitFailed;
  }
  return status;
}

}  // namespace verbena::tools::info
