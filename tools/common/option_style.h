#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "common/output.h"

namespace verbena::tools {

// The options that several tools have: each is spelled, explained and defaulted here alone.

// A help page that is read on a screen, --help and --version.
void style_help(CLI::App& app, const std::string& tool);

// Which message sizes a sweep goes through.
struct SizeOptions {
  std::string sizes = "8:64M";
  std::string begin;  // nccl-tests' spelling
  std::string end;
  uint64_t factor = 4;
};
void add_size_options(CLI::App& app, SizeOptions& options);
// Throws CLI::ValidationError.
std::vector<uint64_t> resolve_sizes(const SizeOptions& options);

// A time with a unit, kept in seconds; the default is what `seconds` holds.
CLI::Option* add_duration_option(CLI::App& app, const std::string& names, double& seconds,
                                 const std::string& help, double least_s, double most_s);

// --timeout, whose default is kStepTimeoutS. `help` where it is not about a step.
void add_timeout_option(CLI::App& app, double& timeout_s,
                        const std::string& help = "any one step may take so long");

// An option whose value is a file, "-" for standard output, which it is without a value too.
void add_target_option(CLI::App& app, const std::string& name, std::string& target, const std::string& help);

void add_output_options(CLI::App& app, OutputOptions& options);
// Before anything is measured: what would fail afterwards. Throws CLI::ValidationError.
void check_output_options(const OutputOptions& options);

// Help and version print themselves, what is wrong is told; the status to leave with.
int leave_parsing(const CLI::App& app, const CLI::ParseError& error);

}  // namespace verbena::tools
