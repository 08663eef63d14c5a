#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::tools::nccl {

// The information about the network in NCCL's INFO log of one rank.
struct NcclLog {
  std::string loaded;                 // "Verbena (v11)": the table that NCCL loaded
  std::string assigned;               // the plugin that NCCL assigned to the communicator
  std::string network;                // "Using network ..."
  std::string route;                  // the first "via NET/..." of a channel
  std::string tuner;                  // the line of the plugin's tuner
  int channels = 0;                   // of collectives; 0: not in the log
  bool unpack_accepted = false;       // NCCL saw an UNPACK device
  std::vector<std::string> counters;  // the plugin's own, printed at finalize
  std::vector<std::string> warnings;
};

NcclLog parse_nccl_log(std::string_view text);

// Returns an empty string if the file cannot be read.
std::string read_whole_file(const std::string& path);

std::vector<std::string> take_last_lines(std::string_view text, size_t count);

}  // namespace verbena::tools::nccl
