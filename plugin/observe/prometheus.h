// Writes the counts as text in Prometheus' exposition format, version 0.0.4.
#pragma once

#include <cstdint>
#include <string>

#include "observe/totals.h"

namespace verbena::observe {

// `process` is a label of every line, so that a reader can combine the files of several processes.
std::string write_prometheus(const Totals& totals, uint64_t process, double unix_time_s);

}  // namespace verbena::observe
