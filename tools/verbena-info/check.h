// --check: what works, what does not, and advice.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "verbena-info/document.h"
#include "verbena-info/options.h"

namespace verbena::tools::info {

// Runs all checks and adds them to the document. Calls `show` with each when it is done.
void run_checks(Document& document, const InfoOptions& options,
                const std::function<void(const Check& check)>& show);

// The self-tests of one path for messages run in a separate process: a connection of the plugin's device to
// itself, over which NCCL's calls move patterns.

inline constexpr int kHostMemory = -1;              // instead of a GPU's index
inline constexpr const char* kCloseTest = "close";  // the last test; it has no detail

struct RailRole {
  std::vector<int> devices;  // the plugin's indices; several are joined first, as NCCL joins them
  int gpu = kHostMemory;
  bool is_staged = false;  // receives take slots, and the CPU unpacks them in place of the GPU
};

// Convert a role to the value of --child and back. An invalid text becomes a role without devices.
std::string format_role(const RailRole& role);
RailRole parse_role(const std::string& text);

// Runs in the child. Reports each test, in order, until one fails.
int run_rail_tests(const InfoOptions& options);

}  // namespace verbena::tools::info
