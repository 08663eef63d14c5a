// How the ranks tell each other why a bootstrap is over.
#pragma once

#include <string>

#include "base/status.h"
#include "device/bootstrap/wire.h"

namespace verbena::bootstrap {

struct FailureNote {
  base::Error error;
  std::string text;
};

// Longer texts are cut.
Record make_failure(const FailureNote& note);
// From outside: a status that is none is kRemote, and of the text stays what can be printed.
FailureNote read_failure(const Record& record);

}  // namespace verbena::bootstrap
