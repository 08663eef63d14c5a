#include "tuner/ops_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <set>

namespace verbena::tuner {
namespace {

// Between two points both time and blocks grow evenly; before the first they are the first's, behind the last
// the time goes on as between the last two.
OpsWay estimate(const OpsMeasurement& measured, uint64_t bytes) {
  OpsWay way{measured.algorithm, 0, measured.threads, measured.chunk_bytes, 0};
  const std::vector<OpsPoint>& points = measured.points;
  const auto above =
      std::find_if(points.begin(), points.end(), [&](const OpsPoint& point) { return point.bytes >= bytes; });
  if (above == points.begin() || points.size() == 1) {
    const OpsPoint& only = above == points.end() ? points.back() : points.front();
    way.blocks = only.blocks;
    way.microseconds =
        only.microseconds *
        (bytes > only.bytes ? static_cast<double>(bytes) / static_cast<double>(only.bytes) : 1);
    return way;
  }
  const auto to = above == points.end() ? points.end() - 1 : above;
  const OpsPoint &low = *(to - 1), &high = *to;
  const double share = static_cast<double>(bytes - low.bytes) / static_cast<double>(high.bytes - low.bytes);
  way.microseconds =
      std::max(low.microseconds + share * (high.microseconds - low.microseconds), low.microseconds / 2);
  const double blocks = low.blocks + std::min(share, 1.0) * (static_cast<double>(high.blocks) - low.blocks);
  way.blocks = std::max(1U, static_cast<uint32_t>(std::ceil(blocks)));
  return way;
}

bool is_for(const OpsMeasurement& measured, std::string_view operation, uint32_t ranks,
            std::string_view gpu) {
  return measured.operation == operation && measured.ranks == ranks && measured.gpu == gpu &&
         !measured.points.empty();
}

std::string describe(const OpsWay& way) {
  char line[160];
  std::snprintf(line, sizeof(line), "%-14s %4u blocks of %3u threads", way.algorithm.c_str(), way.blocks,
                way.threads);
  std::string text = line;
  if (way.chunk_bytes != 0) text += ", chunks of " + std::to_string(way.chunk_bytes) + " bytes";
  std::snprintf(line, sizeof(line), "  %9.2f us", way.microseconds);
  text += line;
  if (way.algorithm == "direct")
    text += ", of tensors in windows where the call asks for it or has_windows promises it";
  else if (way.needs_windows())
    text += ", of tensors in windows where the call asks for it";
  return text;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number == 0) return std::nullopt;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const int shift = unit.empty()                 ? 0
                    : unit == "k" || unit == "K" ? 10
                    : unit == "m" || unit == "M" ? 20
                    : unit == "g" || unit == "G" ? 30
                                                 : -1;
  if (shift < 0 || number >> (63 - shift) != 0) return std::nullopt;
  return number << shift;
}

}  // namespace

std::vector<OpsWay> list_ways(const std::vector<OpsMeasurement>& measurements, std::string_view operation,
                              uint32_t ranks, std::string_view gpu, uint64_t bytes) {
  std::vector<OpsWay> ways;
  for (const OpsMeasurement& measured : measurements) {
    if (!is_for(measured, operation, ranks, gpu)) continue;
    // A way that was left at smaller sizes, as it was slow there, is not brought back by an estimate; one
    // that begins at larger sizes is not tried before.
    const uint64_t first = measured.points.front().bytes, last = measured.points.back().bytes;
    const bool is_last_of_all =
        std::none_of(measurements.begin(), measurements.end(), [&](const OpsMeasurement& other) {
          return is_for(other, operation, ranks, gpu) && other.points.back().bytes > last;
        });
    const bool is_first_of_all =
        std::none_of(measurements.begin(), measurements.end(), [&](const OpsMeasurement& other) {
          return is_for(other, operation, ranks, gpu) && other.points.front().bytes < first;
        });
    if ((bytes < first && !is_first_of_all) || (bytes > last && !is_last_of_all)) continue;
    ways.push_back(estimate(measured, bytes));
  }
  std::stable_sort(ways.begin(), ways.end(),
                   [](const OpsWay& a, const OpsWay& b) { return a.microseconds < b.microseconds; });
  return ways;
}

std::optional<OpsQuestion> parse_question(std::string_view text, std::string& problem) {
  const size_t first = text.find(':');
  const size_t second = first == std::string_view::npos ? first : text.find(':', first + 1);
  problem = "is not OPERATION:BYTES:RANKS, such as all_reduce:512k:4";
  if (second == std::string_view::npos) return std::nullopt;
  OpsQuestion question;
  question.operation = text.substr(0, first);
  const auto bytes = parse_bytes(text.substr(first + 1, second - first - 1));
  const auto ranks = parse_bytes(text.substr(second + 1));
  if (question.operation.empty() || !bytes || !ranks || *ranks < 2 || *ranks > 1024) return std::nullopt;
  question.bytes = *bytes;
  question.ranks = static_cast<uint32_t>(*ranks);
  problem.clear();
  return question;
}

std::string explain_ways(const std::vector<OpsMeasurement>& measurements, const OpsQuestion& question,
                         std::string_view gpu, std::string_view forced) {
  std::set<std::string> gpus;
  for (const OpsMeasurement& measured : measurements) {
    if (gpu.empty() || measured.gpu == gpu) gpus.insert(measured.gpu);
  }
  std::string text;
  for (const std::string& one : gpus) {
    const std::vector<OpsWay> ways =
        list_ways(measurements, question.operation, question.ranks, one, question.bytes);
    if (ways.empty()) continue;
    text += question.operation + " of " + std::to_string(question.bytes) + " bytes by " +
            std::to_string(question.ranks) + " ranks on " + one + ":\n";
    for (const OpsWay& way : ways) text += "  " + describe(way) + "\n";
    std::vector<OpsWay> candidates;
    std::copy_if(ways.begin(), ways.end(), std::back_inserter(candidates),
                 [](const OpsWay& way) { return !way.needs_windows(); });
    if (!forced.empty() && forced != "auto") {
      text += "  chosen: " + std::string(forced) + ", as VERBENA_OPS_ALGORITHM says, whatever was measured\n";
    } else if (candidates.empty()) {
      text += "  chosen: by the library's own rules\n";
    } else {
      char line[160];
      std::snprintf(line, sizeof(line), "  chosen: %s, which was measured to be the fastest",
                    candidates.front().algorithm.c_str());
      text += line;
      if (candidates.size() > 1) {
        std::snprintf(line, sizeof(line), ", by %.0f %% before %s",
                      100 * (candidates[1].microseconds / candidates.front().microseconds - 1),
                      candidates[1].algorithm.c_str());
        text += line;
      }
      text += "\n";
    }
  }
  if (text.empty())
    text = "nothing was measured for " + question.operation + " by " + std::to_string(question.ranks) +
           " ranks: the library's own rules choose; verbena-coll --calibrate FILE measures\n";
  return text;
}

}  // namespace verbena::tuner
