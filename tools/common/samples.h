#pragma once
#include <vector>

namespace verbena::tools {

// Nearest-rank percentile of measured times; 0 for no sample. Takes a copy because it sorts.
double compute_percentile(std::vector<double> samples, double percent);

double compute_median(std::vector<double> samples);

}  // namespace verbena::tools
