// Collects the log lines of a test, in order.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"

namespace verbena::verbs {

class LogCapture {
 public:
  LogCapture();
  ~LogCapture();

  std::vector<std::string> warnings() const;
  std::vector<std::string> infos() const;
  // Waits for a warning that contains `part`; false after timeout_ms.
  bool wait_for_warning(const std::string& part, int timeout_ms) const;
};

}  // namespace verbena::verbs
