// The value of any parameter: refused with a reason, or read, shown and read again as the same.
#include "base/parameters.h"
#include "support/message.h"

using namespace verbena;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  const auto specs = base::list_parameter_settings();
  const auto& spec = specs[data.ConsumeIntegralInRange<size_t>(0, specs.size() - 1)];
  const std::string value = data.ConsumeRemainingBytesAsString();
  base::Parameters first, second;
  fuzz::require(!settings::show_range(spec).empty());
  if (!settings::set_value(spec, value, first).empty()) return 0;
  const std::string shown = settings::show_value(spec, first);
  fuzz::require(settings::set_value(spec, shown, second).empty());
  fuzz::require(settings::show_value(spec, second) == shown);
  return 0;
}
