// Sets environment names for one test, and takes them away again. Not for programs with other threads
// running.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace verbena::base {

class ScopedEnvironment {
 public:
  ScopedEnvironment() = default;
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;
  ~ScopedEnvironment() {
    for (const auto& [name, before] : before_) restore(name, before);
  }

  void set(const std::string& name, const std::string& value) {
    const char* before = std::getenv(name.c_str());
    before_.try_emplace(name, before == nullptr ? std::optional<std::string>() : before);
    setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  static void restore(const std::string& name, const std::optional<std::string>& before) {
    if (before) {
      setenv(name.c_str(), before->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }

  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace verbena::base
