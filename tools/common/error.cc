#include "common/error.h"

#include <cstdio>

namespace verbena::tools {

int report_errors(const std::string& who, const std::function<int()>& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", who.c_str(), error.what());
    if (dynamic_cast<const HangError*>(&error) != nullptr) return kExitHung;
    return dynamic_cast<const UsageError*>(&error) != nullptr ? kExitUsage : kExitFailed;
  }
}

}  // namespace verbena::tools
