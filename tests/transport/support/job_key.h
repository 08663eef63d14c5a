// A job key in a file, for a test to name or not.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "base/scratch_path.h"
#include "transport/support/host.h"

namespace verbena::transport {

class JobKeyFile {
 public:
  JobKeyFile(const std::string& name, const std::string& secret) : path_(name) {
    std::ofstream(path_.get()) << secret;
    chmod(path_.get().c_str(), 0600);
  }
  Settings settings() const { return {{"VERBENA_JOB_KEY_FILE", path_.get()}}; }

 private:
  tests::ScratchPath path_;
};

}  // namespace verbena::transport
