#include "device/bootstrap/rank_list.h"

namespace verbena::bootstrap {
namespace {

constexpr size_t kMaxRuns = 12;

}  // namespace

std::string show_ranks(std::span<const uint32_t> ranks) {
  std::vector<std::string> runs;
  size_t next = 0;
  while (next < ranks.size() && runs.size() < kMaxRuns) {
    const size_t first = next++;
    while (next < ranks.size() && ranks[next] == ranks[next - 1] + 1) ++next;
    std::string run = std::to_string(ranks[first]);
    if (next - first == 2) {
      next = first + 1;  // two in a row read better one by one
    } else if (next - first > 2) {
      run += " to " + std::to_string(ranks[next - 1]);
    }
    runs.push_back(std::move(run));
  }
  if (next < ranks.size()) runs.push_back(std::to_string(ranks.size() - next) + " others");
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i > 0) text += i + 1 == runs.size() ? " and " : ", ";
    text += runs[i];
  }
  return text;
}

}  // namespace verbena::bootstrap
