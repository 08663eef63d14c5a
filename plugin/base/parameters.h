// The plugin's settings. parameters.def declares them; the environment sets them. The only place that reads
// it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/status.h"

namespace verbena::base {

// Enumerators in the order of the words in parameters.def.
enum class AddressFamily : uint8_t { kAuto, kInet, kInet6 };
enum class BouncePlace : uint8_t { kAuto, kHost, kGpu };
enum class DumpSignal : uint8_t { kNone, kUsr1, kUsr2, kHup, kQuit };
enum class SymmPath : uint8_t { kAuto, kLsa, kRdma };
enum class UnpackOffer : uint8_t { kAuto, kNever, kAlways };

// What the word "unlimited" means to a size that may be unlimited.
inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

struct Parameters {
#define VERBENA_FLAG(field, name, aliases, fallback, doc) bool field = fallback;
#define VERBENA_NUMBER(field, name, aliases, fallback, minimum, maximum, unit, doc) int64_t field = fallback;
#define VERBENA_BYTES(field, name, aliases, fallback, minimum, maximum, rules, doc) int64_t field = fallback;
#define VERBENA_TEXT(field, name, aliases, doc) std::string field;
#define VERBENA_CHOICE(field, type, name, aliases, fallback, words, doc) type field = fallback;
#include "base/parameters.def"
};

// Reads the environment anew: the primary name wins over the aliases, an empty value counts as not set. Every
// value that is malformed or out of range gives one line, and the set stays as it was: Status::kInvalidUsage.
// Every unknown VERBENA_* name gives one warning. Not thread safe: the net core calls it before anything else
// runs.
Outcome load_parameters();

// The current set; the defaults before the first load. Code that runs for long copies what it needs.
const Parameters& parameters();

// Where the current value of a parameter came from: the environment name, or "default".
const std::string& parameter_origin(const std::string& name);

// Gives a parameter that the environment did not set another value, until the next load; `origin` says from
// where. A value that is malformed or out of range gives one warning and changes nothing. Not thread safe,
// like the load.
void set_parameter_default(const std::string& name, const std::string& value, const std::string& origin);

// What a launcher says of this process, such as RANK or SLURM_PROCID; empty if it says nothing. Read anew.
std::string read_launcher_variable(const char* name);

// The only way in which the plugin changes its process's environment: sets `name` unless it is set already;
// whether it did. Not thread safe, like setenv: called from init only.
bool set_environment_default(const char* name, const char* value);

}  // namespace verbena::base
