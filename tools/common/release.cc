#include "common/release.h"

namespace verbena::tools {

const char* release() {
  return VERBENA_RELEASE;
}

std::string describe_release(const char* tool) {
  return std::string(tool) + " " + release();
}

}  // namespace verbena::tools
