// The tuning file: JSON, described in docs/tuning.md. Everything in it is checked before any of it is used.
#pragma once

#include <string>
#include <string_view>

#include "tuner/calibration.h"

namespace verbena::tuner {

inline constexpr const char* kCalibrationFormat = "verbena-tuning";
inline constexpr int kCalibrationVersion = 1;

// A calibration, or what is wrong with the file (a clause for a log line).
struct ParsedCalibration {
  std::optional<Calibration> calibration;
  std::string problem;
};

ParsedCalibration parse_calibration(std::string_view text);
ParsedCalibration read_calibration_file(const std::string& path);

// What parse_calibration reads back as the same.
std::string format_calibration(const Calibration& calibration);

// Replaces the file in one step; what went wrong, empty if nothing.
std::string write_calibration_file(const std::string& path, const Calibration& calibration);

// Of the content, whatever the file's layout. It is in the log of every rank, as all must have the same file.
uint64_t compute_fingerprint(const Calibration& calibration);

}  // namespace verbena::tuner
