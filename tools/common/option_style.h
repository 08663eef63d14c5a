#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/output.h"

namespace verbena::tools {

// The options that several tools have: only this file defines their names, help and defaults.

// Sets the layout of the help, and adds --help and --version.
void style_help(CLI::App& app, const std::string& tool);

// The message sizes of a sweep.
struct SizeOptions {
  std::string sizes = "8:64M";
  uint64_t factor = 4;
};
void add_size_options(CLI::App& app, SizeOptions& options);
// Throws CLI::ValidationError.
std::vector<uint64_t> resolve_sizes(const SizeOptions& options);

// A number between two others; the help shows them and the default, which `number` holds.
template <typename Number, typename Bound>
CLI::Option* add_range_option(CLI::App& app, const std::string& names, Number& number,
                              const std::string& help, Bound min, Bound max) {
  return app.add_option(names, number, help)->check(CLI::Range(min, max))->capture_default_str();
}

// A time with a unit, stored in seconds; `seconds` holds the default.
CLI::Option* add_duration_option(CLI::App& app, const std::string& names, double& seconds,
                                 const std::string& help, double min_s, double max_s);

// --timeout; `timeout_s` holds the default. `help` replaces the text if the limit is not for one step.
void add_timeout_option(CLI::App& app, double& timeout_s,
                        const std::string& help = "time limit of each step");

// An option whose value is a file; "-", or no value, is standard output.
void add_target_option(CLI::App& app, const std::string& name, std::string& target, const std::string& help);

void add_output_options(CLI::App& app, OutputOptions& options);
// Checks before the measurement what would fail after it. Throws CLI::ValidationError.
void check_output_options(const OutputOptions& options);

// Prints the help, the version or the error; returns the exit status.
int leave_parsing(const CLI::App& app, const CLI::ParseError& error);

// The options of a program, and how parsing them ended.
template <typename Options>
struct Parsed {
  Options options;
  int exit_status = -1;  // >= 0: exit with it
};
// Parses the arguments; then calls `resolve`, which may throw CLI::ParseError, too. Returns an exit status,
// or -1.
int parse_arguments(CLI::App& app, int argc, const char* const* argv, const std::function<void()>& resolve);

}  // namespace verbena::tools
