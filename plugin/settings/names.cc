#include "settings/names.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "settings/edit_distance.h"

namespace verbena::settings {
namespace {

struct SettingNames {
  const char* name;
  std::string_view aliases;  // separated by spaces
};
constexpr SettingNames kNames[] = {
#include "settings/as_names.def"
#include "settings/python.def"

#include "settings/as_names.def"
#include "settings/softverbs.def"

#include "settings/as_names.def"
#include "settings/verbena.def"
};

bool is_ours(std::string_view name) {
  return std::any_of(std::begin(kNamePrefixes), std::end(kNamePrefixes),
                     [name](std::string_view prefix) { return name.starts_with(prefix); });
}

bool has_word(std::string_view words, std::string_view word) {
  return !word.empty() &&
         (" " + std::string(words) + " ").find(" " + std::string(word) + " ") != std::string::npos;
}

const char* find_nearest(std::string_view name) {
  return std::min_element(std::begin(kNames), std::end(kNames),
                          [name](const SettingNames& a, const SettingNames& b) {
                            return count_edits(name, a.name) < count_edits(name, b.name);
                          })
      ->name;
}

}  // namespace

bool is_known(std::string_view name) {
  return std::any_of(std::begin(kNames), std::end(kNames), [name](const SettingNames& setting) {
    return name == setting.name || has_word(setting.aliases, name);
  });
}

void find_unknown_names(const char* const* environment,
                        const std::function<void(std::string_view name, const char* nearest)>& on_unknown) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view assignment = *environment;
    const std::string_view name = assignment.substr(0, assignment.find('='));
    if (is_ours(name) && !is_known(name)) on_unknown(name, find_nearest(name));
  }
}

}  // namespace verbena::settings
