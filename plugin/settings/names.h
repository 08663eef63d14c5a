// The names of all settings, of every component. A variable that looks like one of them and is none is a
// typing error.
#pragma once

#include <functional>
#include <string_view>

namespace verbena::settings {

// What the names of Verbena's settings begin with.
inline constexpr std::string_view kNamePrefixes[] = {"VERBENA_", "SOFTVERBS_", "LIBVERBENA_", "USE_VERBENA_"};

// Whether a component of Verbena reads the variable.
bool is_known(std::string_view name);

// Calls `on_unknown` for each variable of `environment` that begins as Verbena's settings do and that no
// component reads, with the name of the nearest setting.
void find_unknown_names(const char* const* environment,
                        const std::function<void(std::string_view name, const char* nearest)>& on_unknown);

}  // namespace verbena::settings
