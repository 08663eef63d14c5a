#include "base/environment.h"

#include <cstdlib>

namespace verbena::base {

bool set_environment_default(const char* name, const char* value) {
  return std::getenv(name) == nullptr && setenv(name, value, 0) == 0;
}

}  // namespace verbena::base
