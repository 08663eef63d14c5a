#pragma once
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "base/scratch_path.h"

namespace verbena::tests {

// The control file that takes softverbs' rails down and up. The process must name it in SOFTVERBS_RAILS
// before its first device is opened; softverbs reads it every 5 ms.
class RailsFile {
 public:
  const std::string& path() const { return place_.get(); }
  // Lines such as "1 down". softverbs sees all of them or none.
  void write(const std::string& lines) const {
    const std::string next = path() + ".next";
    std::ofstream(next) << lines;
    std::rename(next.c_str(), path().c_str());
  }

 private:
  ScratchPath place_{"rails"};
};

}  // namespace verbena::tests
