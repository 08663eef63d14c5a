#pragma once
#include <cstdint>
#include <string>

namespace verbena::tools {

// A progress line at the bottom of the terminal, for long runs. Writes nothing if standard error is not a
// terminal. Clear it before printing anything else.
class Progress {
 public:
  // `total` steps; 0 if unknown.
  explicit Progress(uint64_t total);
  // For tests: `descriptor` replaces standard error. Nothing is shown before `quiet_ns` have passed.
  Progress(uint64_t total, int descriptor, bool is_terminal, int64_t quiet_ns);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }

  void show(uint64_t done, const std::string& doing);
  void clear();

 private:
  uint64_t total_;
  int descriptor_;
  bool is_terminal_;
  bool is_shown_ = false;
  int64_t begin_ns_;
  int64_t next_ns_;
};

}  // namespace verbena::tools
