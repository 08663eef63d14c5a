#include "common/output.h"

#include <sys/utsname.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

#include "common/environment.h"
#include "common/error.h"
#include "common/program.h"
#include "common/self_path.h"

namespace verbena::tools {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string format_utc(std::time_t time) {
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// Quotes an argument so that it can be pasted into a shell.
std::string quote_argument(const std::string& argument) {
  const bool is_plain = !argument.empty() && argument.find_first_not_of(
                                                 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                 "0123456789-_=+,./:@%^") == std::string::npos;
  if (is_plain) return argument;
  std::string quoted = "'";
  for (const char letter : argument) quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

constexpr double kScriptTimeoutS = 90;
constexpr int kBelow = 3;  // the exit status of the script if a median is below the limit

ProgramResult run_script(const std::vector<std::string>& arguments, const std::string& input) {
  std::vector<std::string> command{find_program("python3"), find_own_file("stored_results.py").string()};
  if (command[0].empty()) throw ToolError("no python3 in the PATH");
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command, input, kScriptTimeoutS);
}

void draw_result(const Result& result, const std::string& svg_file) {
  const std::string problem = find_plot_problem();
  if (!problem.empty()) throw ToolError("cannot draw " + svg_file + ": " + problem);
  const ProgramResult drawn = run_script({"--plot", svg_file}, describe_result(result).dump());
  if (drawn.status != 0) throw ToolError("cannot draw " + svg_file + ": " + drawn.output);
}

// Prints the comparison; returns the exit status.
int compare_with_stored(const Result& result, const OutputOptions& options, int status) {
  const ProgramResult compared =
      run_script({"--compare", options.compare, "--fail-below", std::to_string(options.fail_below)},
                 describe_result(result).dump());
  if (compared.status != 0 && compared.status != kBelow) throw ToolError("--compare: " + compared.output);
  std::FILE* const out = options.takes_stdout() ? stderr : stdout;
  std::fputs(compared.output.c_str(), out);
  std::fflush(out);
  return compared.status == kBelow && status == kExitOk ? kExitFailed : status;
}

}  // namespace

std::string find_plot_problem() {
  if (find_program("python3").empty()) return "needs python3, which is not in the PATH";
  return find_program("gnuplot").empty()
             ? "needs gnuplot, which is not in the PATH (Debian and Ubuntu: gnuplot-nox)"
             : "";
}

std::string find_compare_problem(const std::string& file) {
  try {
    const ProgramResult checked = run_script({"--check", file}, "");
    return checked.status == 0 ? "" : checked.output;
  } catch (const ToolError& error) {
    return error.what();
  }
}

void write_text(const std::string& target, const std::string& text) {
  if (target == "-") {
    const bool is_written =
        std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    if (!is_written) throw ToolError(std::string("cannot write to standard output: ") + std::strerror(errno));
    return;
  }
  std::ofstream file(target);
  file << text;
  if (!file.flush()) throw ToolError("cannot write " + target + ": " + std::strerror(errno));
}

Result begin_result(const std::string& tool, int argc, const char* const* argv) {
  Result result;
  result.tool = tool;
  result.version = release();
  result.command = tool;
  for (int index = 1; index < argc; ++index) result.command += " " + quote_argument(argv[index]);
  const double begin_s = now_s();
  result.started = format_utc(static_cast<std::time_t>(begin_s));
  result.duration_s = -begin_s;  // deliver_result() adds the end
  result.machine = describe_machine();
  result.environment = list_measured_environment();
  return result;
}

int deliver_result(Result& result, const OutputOptions& options, int status) {
  if (result.duration_s < 0) result.duration_s += now_s();
  if (!options.json.empty()) write_text(options.json, describe_result(result).dump(1) + "\n");
  if (!options.csv.empty()) write_text(options.csv, format_csv(result));
  if (!options.plot.empty()) draw_result(result, options.plot);
  if (!options.compare.empty()) return compare_with_stored(result, options, status);
  return status;
}

namespace {

// The rest of the first line that begins with `name`, without separators and quotes.
std::string find_entry(const char* file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(name)) continue;
    const size_t begin = line.find_first_not_of(" \t:=\"", name.size());
    const size_t end = line.find_last_not_of(" \t\"");
    if (begin != std::string::npos) return line.substr(begin, end - begin + 1);
  }
  return "";
}

}  // namespace

nlohmann::json describe_machine() {
  utsname names{};
  uname(&names);
  const auto pages = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES));
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  std::string cpu = find_entry("/proc/cpuinfo", "model name");
  if (cpu.empty()) cpu = names.machine;  // /proc/cpuinfo has no model name on some architectures
  return {{"host", names.nodename},
          {"system", find_entry("/etc/os-release", "PRETTY_NAME")},
          {"kernel", std::string(names.sysname) + " " + names.release + " " + names.machine},
          {"cpu", cpu},
          {"cpus", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", pages * page_bytes}};
}

nlohmann::json list_measured_environment() {
  constexpr std::array kPrefixes{"VERBENA_", "NCCL_", "SOFTVERBS_", "CUDA_"};
  nlohmann::json listed = nlohmann::json::object();
  for (const std::string& pair : Environment::copy_own().list_all()) {
    for (const char* prefix : kPrefixes) {
      const size_t equals = pair.find('=');
      if (pair.starts_with(prefix)) listed[pair.substr(0, equals)] = pair.substr(equals + 1);
    }
  }
  return listed;
}

}  // namespace verbena::tools
