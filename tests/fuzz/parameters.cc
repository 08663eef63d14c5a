// The value of any parameter: refused with a reason, or read, shown and read again as the same.
#include "base/parameter_spec.h"
#include "support/message.h"

using namespace verbena;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  const auto specs = base::list_parameter_specs();
  const auto& spec = specs[data.ConsumeIntegralInRange<size_t>(0, specs.size() - 1)];
  const std::string value = data.ConsumeRemainingBytesAsString();
  base::Parameters first, second;
  fuzz::require(!base::show_range(spec).empty());
  if (!base::set_parameter(spec, value, first).empty()) return 0;
  const std::string shown = base::show_parameter(spec, first);
  fuzz::require(base::set_parameter(spec, shown, second).empty());
  fuzz::require(base::show_parameter(spec, second) == shown);
  return 0;
}
