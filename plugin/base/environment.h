// The one change that the plugin makes to its process's environment.
#pragma once

namespace verbena::base {

// Sets `name` unless it is set already; whether it did. Not thread safe, like setenv: called from init only.
bool set_environment_default(const char* name, const char* value);

}  // namespace verbena::base
