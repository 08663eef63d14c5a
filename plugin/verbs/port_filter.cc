#include "verbs/port_filter.h"

#include <algorithm>
#include <charconv>

namespace verbena::verbs {
namespace {

constexpr int kMaxPortNumber = 255, kMaxPlace = 32767;

// Removes the next field, up to a colon, from the front. If the field is empty or missing, *number does not
// change.
template <typename Number>
bool take_field(std::string_view* text, int least, int most, Number* number) {
  const size_t colon = std::min(text->find(':'), text->size());
  const std::string_view field = text->substr(0, colon);
  text->remove_prefix(std::min(colon + 1, text->size()));
  if (field.empty()) return true;
  int value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc() || end != field.data() + field.size() || value < least || value > most)
    return false;
  *number = static_cast<Number>(value);
  return true;
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
    const size_t colon = std::min(word.find(':'), word.size());
    Entry entry{std::string(word.substr(0, colon)), kAnyPort, {}};
    std::string_view fields = word.substr(std::min(colon + 1, word.size()));
    const bool has_port = colon + 1 < word.size();
    if (colon < word.size() && (!has_port || !take_field(&fields, 1, kMaxPortNumber, &entry.port_number))) {
      *problem = "'" + std::string(word) + "' has no port number from 1 to 255 after the colon";
      return false;
    }
    if (!take_field(&fields, 0, kMaxPlace, &entry.place.rail) ||
        !take_field(&fields, 0, kMaxPlace, &entry.place.plane) || !fields.empty()) {
      *problem = "'" + std::string(word) + "' is not name:port:rail:plane (rail and plane from 0 to 32767)";
      return false;
    }
    parsed.entries_.push_back(std::move(entry));
  }
  *filter = std::move(parsed);
  return true;
}

bool PortFilter::selects(std::string_view device_name, int port_number) const {
  if (entries_.empty()) return true;
  const bool listed = find(device_name, port_number) != nullptr;
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

std::vector<std::string> PortFilter::list_strangers(std::span<const std::string> device_names) const {
  std::vector<std::string> strangers;
  for (const Entry& entry : entries_) {
    const auto names = [&](const std::string& device_name) { return matches_name(entry, device_name); };
    if (std::ranges::none_of(device_names, names)) strangers.push_back(entry.name);
  }
  return strangers;
}

PortPlace PortFilter::find_place(std::string_view device_name, int port_number) const {
  const Entry* entry = is_exclusion_ ? nullptr : find(device_name, port_number);
  return entry == nullptr ? PortPlace() : entry->place;
}

const PortFilter::Entry* PortFilter::find(std::string_view device_name, int port_number) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return matches_name(entry, device_name) &&
           (entry.port_number == kAnyPort || entry.port_number == port_number);
  });
  return found == entries_.end() ? nullptr : &*found;
}

bool PortFilter::matches_name(const Entry& entry, std::string_view device_name) const {
  return is_exact_ ? device_name == entry.name : device_name.starts_with(entry.name);
}

}  // namespace verbena::verbs
