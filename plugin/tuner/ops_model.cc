#include "tuner/ops_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <set>

namespace verbena::tuner {
namespace {

struct Estimate {
  uint32_t blocks = 0;
  double microseconds = 0;
};

// Interpolates time and blocks linearly between two points. Below the first point they are constant; above
// the last point the time is extrapolated from the last two points.
Estimate estimate(const OpsMeasurement& measured, uint64_t bytes) {
  Estimate way;
  const std::vector<OpsPoint>& points = measured.points;
  const auto above =
      std::lower_bound(points.begin(), points.end(), bytes,
                       [](const OpsPoint& point, uint64_t size) { return point.bytes < size; });
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
  way.microseconds = low.microseconds + share * (high.microseconds - low.microseconds);
  if (bytes > high.bytes) way.microseconds = std::max(way.microseconds, low.microseconds / 2);
  const double blocks = low.blocks + std::min(share, 1.0) * (static_cast<double>(high.blocks) - low.blocks);
  way.blocks = std::max(1U, static_cast<uint32_t>(std::ceil(blocks)));
  return way;
}

// Above the last measured size the time is extrapolated, but must not fall below the time of the last size.
// Returns the size where this limit begins to apply.
std::optional<uint64_t> find_kink(const OpsMeasurement& measured) {
  if (measured.points.size() < 2) return std::nullopt;
  const OpsPoint &low = *(measured.points.end() - 2), &high = measured.points.back();
  if (low.microseconds <= high.microseconds) return std::nullopt;
  const double share = low.microseconds / 2 / (low.microseconds - high.microseconds);
  const double bytes = static_cast<double>(low.bytes) + share * static_cast<double>(high.bytes - low.bytes);
  if (bytes >= 0x1p63) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

bool is_for(const OpsMeasurement& measured, const OpsKey& key) {
  return measured.operation == key.operation && measured.ranks == key.ranks && measured.hosts == key.hosts &&
         measured.gpu == key.gpu && !measured.points.empty();
}

// The range of sizes for which a variant is a candidate. A variant whose measurements end early because it
// was slow is not reconsidered above them; a variant whose measurements begin at larger sizes is not
// considered below them.
struct Reach {
  uint64_t first_bytes, last_bytes;
};
std::vector<Reach> find_reaches(const std::vector<const OpsMeasurement*>& ways) {
  uint64_t first = UINT64_MAX, last = 0;
  for (const OpsMeasurement* const way : ways) {
    first = std::min(first, way->points.front().bytes);
    last = std::max(last, way->points.back().bytes);
  }
  std::vector<Reach> reaches;
  reaches.reserve(ways.size());
  for (const OpsMeasurement* const way : ways) {
    const uint64_t begin = way->points.front().bytes, end = way->points.back().bytes;
    reaches.push_back({begin == first ? 0 : begin, end == last ? UINT64_MAX : end});
  }
  return reaches;
}
std::vector<const OpsMeasurement*> list_measured(const std::vector<OpsMeasurement>& measurements,
                                                 const OpsKey& key) {
  std::vector<const OpsMeasurement*> ways;
  for (const OpsMeasurement& measured : measurements)
    if (is_for(measured, key)) ways.push_back(&measured);
  return ways;
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
    text += ", only for tensors in windows, if the call chooses this algorithm or sets has_windows";
  else if (way.needs_windows())
    text += ", only for tensors in windows, if the call chooses this algorithm";
  return text;
}

// Returns whether VERBENA_OPS_ALGORITHM chooses the algorithm of calls between so many hosts.
bool has_effect(std::string_view forced, uint32_t hosts) {
  if (forced.empty() || forced == "auto") return false;
  return hosts == 1 ? forced != "lossless" : forced == "lossless" || forced == "bulk-two-shot";
}

// Says what the algorithms between hosts send, and when lossless is chosen.
std::string describe_hosts(const OpsQuestion& question) {
  const bool reduces = question.operation == "all_reduce" || question.operation == "reduce_scatter";
  const bool are_sums = reduces && question.ranks > question.hosts;
  return std::string("  between hosts: bulk-two-shot sends bfloat16 ") +
         (are_sums ? "sums of a host's ranks in 32 bits, lossless in about 17 to 21 bits"
                   : "elements in 16 bits, lossless in about 12 bits") +
         "; the results have the same bits\n  lossless is chosen for bfloat16 tensors if measurements show "
         "that it is faster (--calibrate FILE --hosts N --operation " +
         question.operation + "," + question.operation +
         "_lossless), if VERBENA_OPS_ALGORITHM is lossless, or if the call chooses it\n";
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

std::vector<OpsWay> list_ways(const std::vector<OpsMeasurement>& measurements, const OpsKey& key,
                              uint64_t bytes) {
  const std::vector<const OpsMeasurement*> measured = list_measured(measurements, key);
  const std::vector<Reach> reaches = find_reaches(measured);
  std::vector<OpsWay> ways;
  for (size_t i = 0; i < measured.size(); ++i) {
    if (bytes < reaches[i].first_bytes || bytes > reaches[i].last_bytes) continue;
    const Estimate expected = estimate(*measured[i], bytes);
    ways.push_back({measured[i]->algorithm, expected.blocks, measured[i]->threads, measured[i]->chunk_bytes,
                    expected.microseconds});
  }
  std::stable_sort(ways.begin(), ways.end(),
                   [](const OpsWay& a, const OpsWay& b) { return a.microseconds < b.microseconds; });
  return ways;
}

OpsTable::OpsTable(const std::vector<OpsMeasurement>& measurements, const OpsKey& key, const Accept& accept) {
  const std::vector<const OpsMeasurement*> measured = list_measured(measurements, key);
  const std::vector<Reach> reaches = find_reaches(measured);
  std::set<uint64_t> ends = {UINT64_MAX};
  for (size_t i = 0; i < measured.size(); ++i) {
    const auto number = accept(*measured[i]);
    if (!number) continue;
    ways_.push_back({*measured[i], *number, reaches[i].first_bytes, reaches[i].last_bytes});
    for (const OpsPoint& point : measured[i]->points) ends.insert(point.bytes);
    if (reaches[i].first_bytes > 0) ends.insert(reaches[i].first_bytes - 1);
  }
  if (ways_.empty()) return;
  for (const Way& way : ways_)
    if (const auto kink = find_kink(way.measured)) ends.insert(*kink);
  uint64_t begin = 0;
  for (const uint64_t end : ends) {
    append_intervals(begin, compare_ways(begin), end, compare_ways(end));
    begin = end + 1;
  }
}

// Finds the fastest variant for a size by comparing all of them.
size_t OpsTable::compare_ways(uint64_t bytes) const {
  size_t fastest = kNone;
  double least = 0;
  for (size_t i = 0; i < ways_.size(); ++i) {
    if (bytes < ways_[i].first_bytes || bytes > ways_[i].last_bytes) continue;
    const double microseconds = estimate(ways_[i].measured, bytes).microseconds;
    if (fastest != kNone && microseconds >= least) continue;
    fastest = i;
    least = microseconds;
  }
  return fastest;
}

// In this range of sizes all times are linear: a variant that is the fastest at both ends is the fastest in
// between.
void OpsTable::append_intervals(uint64_t begin, size_t at_begin, uint64_t end, size_t at_end) {
  if (at_begin == at_end) {
    if (!intervals_.empty() && intervals_.back().way == at_end)
      intervals_.back().end_bytes = end;
    else
      intervals_.push_back({end, at_end});
    return;
  }
  const uint64_t middle = begin + (end - begin) / 2;
  const size_t at_middle = compare_ways(middle);
  append_intervals(begin, at_begin, middle, at_middle);
  append_intervals(middle + 1, end == middle + 1 ? at_end : compare_ways(middle + 1), end, at_end);
}

std::optional<OpsTable::Fastest> OpsTable::find_fastest(uint64_t bytes) const {
  const auto interval =
      std::lower_bound(intervals_.begin(), intervals_.end(), bytes,
                       [](const Interval& one, uint64_t size) { return one.end_bytes < size; });
  if (interval == intervals_.end() || interval->way == kNone) return std::nullopt;
  const OpsMeasurement& way = ways_[interval->way].measured;
  const Estimate expected = estimate(way, bytes);
  return Fastest{ways_[interval->way].number, expected.blocks, way.threads, way.chunk_bytes,
                 expected.microseconds};
}

std::optional<OpsQuestion> parse_question(std::string_view text, std::string& problem) {
  const size_t first = text.find(':');
  const size_t second = first == std::string_view::npos ? first : text.find(':', first + 1);
  problem =
      "is not OPERATION:BYTES:RANKS, such as all_reduce:512k:4, or OPERATION:BYTES:RANKSxHOSTS, such as "
      "all_reduce:1m:4x2 for four ranks on two hosts";
  if (second == std::string_view::npos) return std::nullopt;
  const std::string_view members = text.substr(second + 1);
  const size_t cross = members.find('x');
  OpsQuestion question;
  question.operation = text.substr(0, first);
  const auto bytes = parse_bytes(text.substr(first + 1, second - first - 1));
  const auto ranks = parse_bytes(members.substr(0, cross));
  const auto hosts = cross == std::string_view::npos ? 1 : parse_bytes(members.substr(cross + 1));
  if (question.operation.empty() || !bytes || !ranks || *ranks < 2 || *ranks > 1024) return std::nullopt;
  if (!hosts || *ranks % *hosts != 0) return std::nullopt;
  question.bytes = *bytes;
  question.ranks = static_cast<uint32_t>(*ranks);
  question.hosts = static_cast<uint32_t>(*hosts);
  problem.clear();
  return question;
}

std::string explain_ways(const std::vector<OpsMeasurement>& measurements, const OpsQuestion& question,
                         std::string_view gpu, std::string_view forced) {
  std::set<std::string> gpus;
  for (const OpsMeasurement& measured : measurements) {
    if (gpu.empty() || measured.gpu == gpu) gpus.insert(measured.gpu);
  }
  if (!has_effect(forced, question.hosts)) forced = "";
  const std::string by = " by " + std::to_string(question.ranks) + " ranks" +
                         (question.hosts == 1 ? "" : " on " + std::to_string(question.hosts) + " hosts");
  std::string text;
  for (const std::string& one : gpus) {
    const std::vector<OpsWay> ways =
        list_ways(measurements, {question.operation, question.ranks, question.hosts, one}, question.bytes);
    if (ways.empty()) continue;
    text += question.operation + " of " + std::to_string(question.bytes) + " bytes" + by +
            (question.hosts == 1 ? " on " : " with ") + one + ":\n";
    for (const OpsWay& way : ways) text += "  " + describe(way) + "\n";
    std::vector<OpsWay> candidates;
    std::copy_if(ways.begin(), ways.end(), std::back_inserter(candidates),
                 [](const OpsWay& way) { return !way.needs_windows(); });
    if (!forced.empty()) {
      text += "  chosen: " + std::string(forced) + ", by VERBENA_OPS_ALGORITHM, regardless of measurements\n";
    } else if (candidates.empty()) {
      text += "  chosen: by the library's own rules\n";
    } else {
      char line[160];
      std::snprintf(line, sizeof(line), "  chosen: %s, the fastest in the measurements",
                    candidates.front().algorithm.c_str());
      text += line;
      if (candidates.size() > 1) {
        std::snprintf(line, sizeof(line), ", %.0f %% faster than %s",
                      100 * (candidates[1].microseconds / candidates.front().microseconds - 1),
                      candidates[1].algorithm.c_str());
        text += line;
      }
      text += "\n";
    }
  }
  if (text.empty()) {
    const std::string chooses = forced.empty() ? "the library's own rules choose"
                                               : "VERBENA_OPS_ALGORITHM chooses " + std::string(forced);
    text = "there are no measurements of " + question.operation + by + ": " + chooses +
           "; measure with verbena-bench coll --calibrate FILE\n";
  }
  return question.hosts == 1 ? text : text + describe_hosts(question);
}

}  // namespace verbena::tuner
