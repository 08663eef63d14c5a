#include "verbena-info/check.h"

#include <algorithm>

#include "common/environment.h"
#include "common/error.h"
#include "verbena-info/check_advice.h"
#include "verbena-info/children.h"
#include "verbena-info/rail_test.h"
#include "verbena-info/test_memory.h"
#include "verbena-info/text_part.h"

namespace verbena::tools::info {
namespace {

constexpr double kGraceS = 3;
constexpr const char* kConnectTimeoutMs = "10000";

// So that a rail that fails is seen to fail, at once, whatever the job's settings would make of it.
Environment make_environment() {
  Environment environment = Environment::copy_own();
  environment.set("VERBENA_FAILOVER", "0");
  environment.set("VERBENA_UNPACK", "0");
  environment.set_default("VERBENA_CONNECT_TIMEOUT_MS", kConnectTimeoutMs);
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

Json check_rail(const Json& device, int gpu, const Options& options, const Environment& environment) {
  const std::string with = gpu == kHostMemory ? "host memory" : "GPU " + std::to_string(gpu);
  const int index = device["index"];
  const ChildAnswer answer =
      ask_child(name_rail_test_role(index, gpu), options, environment, options.timeout_s + kGraceS);
  Json check = make_check(read_text(device, "name"), with, "ok", "");
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
  if (check["status"] != "ok") check["try"] = suggest_remedy(detail, device, gpu);
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
    const std::string name = read_text(device, "device") + " port " + device["port"].dump();
    checks.push_back(make_check(name, "", "skipped", "not used: " + read_text(device, "why_not")));
  }
  return checks;
}

}  // namespace

void run_checks(Json& document, const Options& options, void (*show)(const Json& check)) {
  Json& checks = document["checks"] = Json::array();
  const auto add = [&](Json check) {
    show(check);
    checks.push_back(std::move(check));
  };
  for (const Json& check : list_found(document)) add(check);
  if (!document["plugin"]["problem"].is_null()) return;
  const Environment environment = make_environment();
  for (const Json& device : document["devices"]) {
    if (!device["usable"].get<bool>()) continue;
    add(check_rail(device, kHostMemory, options, environment));
    const bool reaches_gpus = read_text(device["gpu_memory"], "path") != "none";
    for (const Json& gpu : document["gpus"]["devices"]) {
      if (reaches_gpus) {
        add(check_rail(device, gpu["index"], options, environment));
      } else {
        add(make_check(read_text(device, "name"), "GPU " + gpu["index"].dump(), "skipped",
                       "NCCL goes through host memory: " + read_text(device["gpu_memory"], "why"),
                       read_text(device["gpu_memory"], "try")));
      }
    }
  }
  if (document["gpus"]["devices"].empty())
    add(make_check("GPU memory", "", "skipped", read_text(document["gpus"], "problem")));
}

std::string format_check(const Json& check) {
  constexpr size_t kStatusWidth = 9, kWhatWidth = 28, kWithWidth = 13;
  const std::string status = check["status"] == "failed" ? "FAILED" : read_text(check, "status");
  std::string line = pad(status, kStatusWidth) + pad(read_text(check, "what"), kWhatWidth) +
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
