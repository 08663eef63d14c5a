// The names of all settings of every component. A variable that begins like a setting but is not one is
// probably a typing error.
#pragma once

#include <functional>
#include <string_view>

namespace verbena::settings {

// The prefixes of the names of Verbena's settings.
inline constexpr std::string_view kNamePrefixes[] = {"VERBENA_", "SOFTVERBS_", "LIBVERBENA_", "USE_VERBENA_"};

// Returns whether a component of Verbena reads the variable.
bool is_known(std::string_view name);

// Calls `on_unknown` for each variable of `environment` that begins like Verbena's settings but that no
// component reads, with the name of the most similar setting.
void find_unknown_names(const char* const* environment,
                        const std::function<void(std::string_view name, const char* nearest)>& on_unknown);

}  // namespace verbena::settings
