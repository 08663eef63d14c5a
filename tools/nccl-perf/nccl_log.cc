#include "nccl-perf/nccl_log.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>

namespace verbena::tools::nccl {
namespace {

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::optional<std::string_view> find_after(std::string_view line, std::string_view words) {
  const size_t at = line.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  return line.substr(at + words.size());
}

void keep_first(std::string& kept, std::optional<std::string_view> found) {
  if (found && kept.empty()) kept = *found;
}

// "host:pid:tid [0] NCCL INFO text" -> "text"
std::string_view strip_prefix(std::string_view line) {
  for (const std::string_view mark : {"NCCL INFO ", "NCCL WARN "}) {
    if (const auto text = find_after(line, mark)) return *text;
  }
  return line;
}

void read_line(NcclLog& log, std::string_view line) {
  const std::string_view text = strip_prefix(line);
  keep_first(log.loaded, find_after(text, "Loaded net plugin "));
  keep_first(log.network, find_after(text, "Using network "));
  if (const auto name = find_after(text, "Assigned NET plugin "); name && log.assigned.empty()) {
    log.assigned = name->substr(0, name->find(" to comm"));
  }
  if (const auto route = find_after(text, " via NET/"); route && log.route.empty()) {
    log.route = "NET/" + std::string(*route);
  }
  // "4 coll channels, 0 collnet channels, ..."
  if (text.find(" coll channels, ") != std::string_view::npos)
    std::from_chars(text.data(), text.data() + text.size(), log.channels);
  if (text.find("NCCL_NET_DEVICE_UNPACK net plugin version") != std::string_view::npos)
    log.unpack_accepted = true;
  keep_first(log.tuner, find_after(text, "verbena: tuner: "));
  const bool own = text.find("verbena:") != std::string_view::npos;
  if (own && text.find("staged") != std::string_view::npos) log.counters.emplace_back(text);
  if (line.find("NCCL WARN ") != std::string_view::npos) log.warnings.emplace_back(text);
}

}  // namespace

NcclLog parse_nccl_log(std::string_view text) {
  NcclLog log;
  for (const std::string_view line : split_lines(text)) read_line(log, line);
  return log;
}

std::string read_whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> take_last_lines(std::string_view text, size_t count) {
  const std::vector<std::string_view> lines = split_lines(text);
  const size_t first = lines.size() - std::min(count, lines.size());
  return {lines.begin() + static_cast<std::ptrdiff_t>(first), lines.end()};
}

}  // namespace verbena::tools::nccl
