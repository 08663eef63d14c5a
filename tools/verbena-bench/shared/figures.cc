#include "verbena-bench/shared/figures.h"

#include <algorithm>
#include <sstream>

namespace verbena::tools::bench {

bool Figures::take(const std::string& line) {
  std::istringstream words(line);
  std::string kind, name, rest;
  words >> kind;
  if (kind == "gpu") {
    std::getline(words >> std::ws, gpu_);
    return true;
  }
  if (kind != "figure" && kind != "bits" && kind != "checked") return false;
  words >> name;
  std::getline(words >> std::ws, rest);
  if (kind == "checked") {
    take_check(std::stoull(name), rest);
  } else if (kind == "bits") {
    wrong_ += bits_.emplace(rest, name).first->second != name;
  } else {
    std::istringstream numbers(rest);
    std::vector<double> samples;
    for (double sample = 0; numbers >> sample;) samples.push_back(sample);
    std::vector<double>& joined = samples_.try_emplace(name, samples).first->second;
    for (size_t i = 0; i < std::min(joined.size(), samples.size()); ++i)
      joined[i] = join_ == Join::kFastest ? std::min(joined[i], samples[i]) : std::max(joined[i], samples[i]);
  }
  return true;
}

void Figures::take_check(uint64_t wrong, const std::string& what) {
  // The time at the end of the text differs between ranks.
  const std::string common = what.substr(0, what.rfind(", in "));
  auto check = std::find_if(checks_.begin(), checks_.end(),
                            [&](const Check& one) { return one.what.starts_with(common); });
  if (check == checks_.end()) check = checks_.insert(check, Check{what});
  check->wrong += wrong;
  ++check->ranks;
  wrong_ += wrong;
}

std::string Figures::take_finished_checks() {
  std::string text;
  for (const Check& check : checks_) {
    if (check.ranks < ranks_ || (samples_.contains(check.what) && check.wrong == 0)) continue;
    text += (check.wrong == 0 ? "ok: " : "WRONG (" + std::to_string(check.wrong) + " elements): ") +
            check.what + "\n";
  }
  std::erase_if(checks_, [&](const Check& check) { return check.ranks >= ranks_; });
  return text;
}

std::vector<double> Figures::find(const std::string& name) const {
  const auto found = samples_.find(name);
  return found == samples_.end() ? std::vector<double>{} : found->second;
}

}  // namespace verbena::tools::bench
