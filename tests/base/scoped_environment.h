// Sets environment names for one test, and takes them away again. Not for programs with other threads
// running.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace verbena::base {

// A number that the environment may set for a run by hand, such as a seed.
inline uint64_t read_number(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 0);
}

class ScopedEnvironment {
 public:
  ScopedEnvironment() = default;
  explicit ScopedEnvironment(std::initializer_list<std::pair<std::string, std::string>> values) {
    for (const auto& [name, value] : values) set(name, value);
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;
  ~ScopedEnvironment() {
    for (const auto& [name, before] : before_) restore(name, before);
  }

  void set(const std::string& name, const std::string& value) {
    remember(name);
    setenv(name.c_str(), value.c_str(), 1);
  }
  void unset(const std::string& name) {
    remember(name);
    unsetenv(name.c_str());
  }

 private:
  void remember(const std::string& name) {
    const char* before = std::getenv(name.c_str());
    before_.try_emplace(name, before == nullptr ? std::optional<std::string>() : before);
  }
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
