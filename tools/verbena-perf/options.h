#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace verbena::tools::perf {

enum class Protocol { kSimple, kLl, kLl128 };

// What is measured. Both sides must agree on it: a client gives it to its server, as the arguments it got.
struct Workload {
  int abi_version = 12;
  std::vector<uint64_t> sizes_bytes;
  uint64_t iterations = 0;  // 0: chosen by size
  uint64_t warmup = 20;
  unsigned window = 8;
  unsigned consume_lag = 0;
  int rails = 1;
  bool latency = true;
  bool bandwidth = true;
  int unpack = -1;  // -1: as the environment says
  std::string threshold;
  Protocol protocol = Protocol::kSimple;
  bool user_buffer = false;
  bool cuda_type = false;
  bool verify = true;
  uint64_t source_offset_bytes = 0;
  uint64_t destination_offset_bytes = 0;
  double timeout_s = 30;
};

// And what each side decides for itself.
struct Options : Workload {
  std::vector<std::string> workload_arguments;  // those of the command line that made the workload
  std::string plugin;
  int device = 0;
  bool server = false;
  std::string client;  // the server's host name or address
  uint16_t port = 18590;
  double wait_s = -1;  // for the other host to turn up; -1: the usual
  double last_words_s = 0.3;
  bool json = false;
  bool csv = false;
  bool verbose = false;
  int child = -1;  // set in the processes that the tool starts; 0 begins each exchange, 1 answers

  bool has_two_hosts() const { return server || !client.empty(); }
};

struct ParsedOptions {
  Options options;
  int exit_status = -1;  // >= 0: leave with it (help, or a bad option that has been reported)
};

ParsedOptions parse_options(int argc, const char* const* argv);

// Sets the workload from a client's arguments. Throws ToolError, with what this side makes of them.
void adopt_workload(Options& options, const std::vector<std::string>& arguments);

const char* describe_protocol(Protocol protocol);

}  // namespace verbena::tools::perf
