// A tuning file: refused with a reason, or read, written and read again as the same.
#include "support/message.h"
#include "tuner/calibration_file.h"

using namespace verbena;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  const auto first = tuner::parse_calibration({reinterpret_cast<const char*>(bytes), length_bytes});
  fuzz::require(first.calibration.has_value() == first.problem.empty());
  if (!first.calibration) return 0;
  const auto second = tuner::parse_calibration(tuner::format_calibration(*first.calibration));
  fuzz::require(second.calibration.has_value());
  fuzz::require(tuner::compute_fingerprint(*first.calibration) ==
                tuner::compute_fingerprint(*second.calibration));
  return 0;
}
