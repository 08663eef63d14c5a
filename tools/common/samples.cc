#include "common/samples.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace verbena::tools {

double compute_percentile(std::vector<double> samples, double percent) {
  if (samples.empty()) return 0;
  const double rank = std::ceil(percent / 100.0 * static_cast<double>(samples.size()));
  const size_t index = std::min(samples.size() - 1, static_cast<size_t>(std::max(rank, 1.0)) - 1);
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(index), samples.end());
  return samples[index];
}

double compute_median(std::vector<double> samples) {
  return compute_percentile(std::move(samples), 50);
}

}  // namespace verbena::tools
