// The tuning file: JSON, described in docs/tuning.md. The whole file is checked before any of it is used.
#pragma once

#include <string>
#include <string_view>

#include "tuner/calibration.h"

namespace verbena::tuner {

inline constexpr const char* kCalibrationFormat = "verbena-tuning";
inline constexpr int kCalibrationVersion = 1;

// A calibration, or the problem with the file (a clause for a log line).
struct ParsedCalibration {
  std::optional<Calibration> calibration;
  std::string problem;
};

ParsedCalibration parse_calibration(std::string_view text);
ParsedCalibration read_calibration_file(const std::string& path);

// The text of a tuning file; parse_calibration makes an equal calibration of it.
std::string format_calibration(const Calibration& calibration);

// Replaces the file in one step. Returns the problem; empty if there is none.
std::string write_calibration_file(const std::string& path, const Calibration& calibration);

// A hash of the content, independent of the file's layout. Every rank logs it, because all must have the same
// file.
uint64_t compute_fingerprint(const Calibration& calibration);

}  // namespace verbena::tuner
