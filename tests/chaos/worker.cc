#include "chaos/worker.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <numeric>

#include "chaos/life.h"
#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/net_plugin.h"

namespace verbena::chaos {
namespace {

using nlohmann::json;

constexpr double kReportTimeoutS = 10;
constexpr double kDriverTimeoutS = 120;  // it gives up before

void show_plugin_line(const tools::PluginLine& line) {
  std::fprintf(stderr, "%.3f %s %s\n", static_cast<double>(tools::now_ns()) * 1e-9,
               line.is_warning() ? "WARN" : "INFO", line.text.c_str());
}

void redirect_output(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) throw tools::ToolError(path + ": cannot be opened");
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) dup2(file, descriptor);
  close(file);
}

int open_device(tools::NetPlugin& plugin, int rails) {
  if (rails == 1) return 0;
  std::vector<int> members(static_cast<size_t>(rails));
  std::iota(members.begin(), members.end(), 0);
  return plugin.make_virtual_device(members);
}

void spend_lives(const WorkerOptions& options, tools::LineChannel& control) {
  const auto report = [&control](const json& line) {
    control.send_line(line.dump(), tools::deadline_after_s(kReportTimeoutS));
  };
  const auto notice = [&report](const char* phase, unsigned percent) {
    report({{"phase", phase}, {"percent", percent}});
  };
  notice("load", 0);
  const Traffic traffic = json::parse(options.traffic).get<Traffic>();
  const tools::PluginLibrary library(options.plugin);
  const auto plugin = library.adapt(traffic.abi_version);
  notice("init", 0);
  plugin->init(tools::log_plugin_line<show_plugin_line>);
  const int device = open_device(*plugin, traffic.rails);
  const bool unpacks = plugin->read_properties(device).device_type == abi::kDeviceUnpack;
  Partner partner(tools::kPartnerDescriptor);
  for (unsigned number = options.first_life; number <= traffic.lives; ++number) {
    if (number > options.first_life) control.receive_line(tools::deadline_after_s(kDriverTimeoutS));
    Life life(*plugin, device, unpacks, traffic, options.end, number, partner, notice);
    report(life.run());
  }
  notice("finalize", 0);
  plugin->finalize();
  report({{"finished", true}});
}

}  // namespace

int run_worker(const WorkerOptions& options) {
  tools::prepare_child_process();
  tools::LineChannel control(tools::kControlDescriptor);
  try {
    redirect_output(options.output);
    spend_lives(options, control);
    return tools::kExitOk;
  } catch (const std::exception& error) {
    control.send_line(json{{"error", error.what()}}.dump(), tools::deadline_after_s(kReportTimeoutS));
    return tools::kExitFailed;
  }
}

}  // namespace verbena::chaos
