// The plugin's settings: settings/verbena.def declares them, the environment sets them. Only this module
// reads the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "settings/setting.h"

namespace verbena::base {

// Enumerators in the order of the words in verbena.def.
enum class AddressFamily : uint8_t { kAuto, kInet, kInet6 };
enum class BouncePlace : uint8_t { kAuto, kHost, kGpu };
enum class DumpSignal : uint8_t { kNone, kUsr1, kUsr2, kHup, kQuit };
enum class SymmPath : uint8_t { kAuto, kLsa, kRdma };
enum class OpsAlgorithm : uint8_t { kAuto, kOneShot, kTwoShot, kBulkOneShot, kBulkTwoShot, kLossless };
enum class Transport : uint8_t { kConnected, kDatagram };
// How a write is ordered after earlier writes.
enum class WordOrder : uint8_t { kAuto, kPosted, kCompleted };
enum class UnpackOffer : uint8_t { kAuto, kNever, kAlways };

using settings::kUnlimitedBytes;

struct Parameters {
#include "settings/as_members.def"
#include "settings/verbena.def"
};

std::span<const settings::SettingOf<Parameters>> list_parameter_settings();
// Settings of NCCL's own IB transport that have no effect here. `doc` says what the plugin does or offers
// instead.
std::span<const settings::NamedSetting> list_ignored_settings();

// Reads the environment again. The primary name takes precedence over the aliases; an empty value counts as
// not set. Logs a line for each value of a VERBENA_* name that is malformed or out of range. If there is one,
// the function keeps the previous values and returns Status::kInvalidUsage. Values of NCCL_* names are
// adapted to the range instead, with a warning. Logs one warning for each name that begins like Verbena's
// settings but is not a setting, and for each NCCL_IB_* name that has no effect here. Not thread safe: the
// net core calls it before anything else runs.
Outcome load_parameters();

// Returns the current parameters; before the first load, the defaults. A later load changes them, so
// long-lived objects copy the values that they need.
const Parameters& parameters();

// Returns the origin of a parameter's current value: the environment name, or kDefaultOrigin.
inline constexpr char kDefaultOrigin[] = "default";
const std::string& parameter_origin(const std::string& name);

// Returns the variable that sets the setting; nullopt if the environment does not set it.
std::optional<settings::SettingOrigin> find_origin(const settings::Setting& setting);

// Sets a parameter that the environment did not set, until the next load; `origin` says where the value comes
// from. Logs a warning and changes nothing if the value is malformed or out of range. Not thread safe, like
// load_parameters().
void set_parameter_default(const std::string& name, const std::string& value, const std::string& origin);

// Returns the value of a variable that the job's launcher sets, such as RANK or SLURM_PROCID; empty if it is
// not set. Reads the environment at each call.
std::string read_launcher_variable(const char* name);

// Sets the environment variable `name` unless it is set already, and returns whether it did. The plugin
// changes the environment in no other way. Unlike setenv, it is safe while other threads read the
// environment. A change that another thread makes at the same time may be lost, so call it from init only.
bool set_environment_default(const char* name, const char* value);

}  // namespace verbena::base
