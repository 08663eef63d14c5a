#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::tools::nccl {

// What NCCL's own INFO log of one rank tells about its network.
struct NcclLog {
  std::string loaded;                 // "Verbena (v11)": the table NCCL took
  std::string assigned;               // the plugin NCCL assigned to the communicator
  std::string network;                // "Using network ..."
  std::string route;                  // the first "via NET/..." of a channel
  std::string tuner;                  // what the plugin's tuner does, in its own words
  int channels = 0;                   // that collectives may use; 0: not in the log
  bool unpack_accepted = false;       // NCCL saw an UNPACK device
  std::vector<std::string> counters;  // the plugin's own, printed at finalize
  std::vector<std::string> warnings;
};

NcclLog parse_nccl_log(std::string_view text);

// Empty when the file cannot be read.
std::string read_whole_file(const std::string& path);

std::vector<std::string> take_last_lines(std::string_view text, size_t count);

}  // namespace verbena::tools::nccl
