#include "verbs/port_filter.h"

#include <algorithm>
#include <charconv>

namespace verbena::verbs {
namespace {

constexpr int kMaxPortNumber = 255;

bool parse_port(std::string_view text, int* port_number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *port_number);
  return error == std::errc() && end == text.data() + text.size() && *port_number >= 1 &&
         *port_number <= kMaxPortNumber;
}

bool consume(std::string_view* text, char mark) {
  if (text->empty() || text->front() != mark) return false;
  text->remove_prefix(1);
  return true;
}

}  // namespace

bool PortFilter::parse(std::string_view text, PortFilter* filter, std::string* problem) {
  PortFilter parsed;
  parsed.is_exclusion_ = consume(&text, '^');
  parsed.is_exact_ = consume(&text, '=');
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view word = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (word.empty()) continue;
    const size_t colon = word.find(':');
    Entry entry{std::string(word.substr(0, colon)), kAnyPort};
    if (colon != std::string_view::npos && !parse_port(word.substr(colon + 1), &entry.port_number)) {
      *problem = "'" + std::string(word) + "' has no port number from 1 to 255 after the colon";
      return false;
    }
    parsed.entries_.push_back(std::move(entry));
  }
  *filter = std::move(parsed);
  return true;
}

bool PortFilter::selects(std::string_view device_name, int port_number) const {
  if (entries_.empty()) return true;
  const bool listed = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return matches_name(entry, device_name) &&
           (entry.port_number == kAnyPort || entry.port_number == port_number);
  });
  return listed != is_exclusion_;
}

bool PortFilter::may_select(std::string_view device_name) const {
  if (entries_.empty()) return true;
  if (!is_exclusion_) {
    return std::any_of(entries_.begin(), entries_.end(),
                       [&](const Entry& entry) { return matches_name(entry, device_name); });
  }
  return std::none_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.port_number == kAnyPort && matches_name(entry, device_name);
  });
}

bool PortFilter::matches_name(const Entry& entry, std::string_view device_name) const {
  return is_exact_ ? device_name == entry.name : device_name.starts_with(entry.name);
}

}  // namespace verbena::verbs
