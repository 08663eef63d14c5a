#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/option_style.h"

namespace verbena::tools::perf {

enum class Protocol { kSimple, kLl, kLl128 };
enum class Transport {
  kVerbena,   // transport chosen by the plugin's settings
  kDatagram,  // the plugin with VERBENA_TRANSPORT=datagram
  kNcclIb,
};

// What is measured. Both sides must agree on it: a client sends it to its server, as command-line arguments.
struct Workload {
  Transport transport = Transport::kVerbena;
  bool against = false;  // both transports in turn
  unsigned rounds = 4;   // runs of each transport
  unsigned run = 0;      // the number of this run
  int abi_version = 12;
  std::vector<uint64_t> sizes_bytes;
  uint64_t iterations = 0;  // 0: chosen by size
  unsigned repeats = 0;     // timed passes per size and run; 0 is replaced when options are parsed
  uint64_t warmup = 20;
  unsigned window = 8;
  unsigned consume_lag = 0;
  int rails = 1;
  unsigned pairs = 1;  // connections in each direction
  bool latency = true;
  bool bandwidth = true;
  int unpack = -1;  // -1: from the environment
  std::string threshold;
  Protocol protocol = Protocol::kSimple;
  bool user_buffer = false;
  bool cuda_type = false;
  bool verify = true;
  std::string until;  // a path: the checked bandwidth pass is repeated until this file exists
  uint64_t source_offset_bytes = 0;
  uint64_t destination_offset_bytes = 0;
  double timeout_s = kStepTimeoutS;

  unsigned count_runs() const { return against ? 2 * rounds : 1; }
};

// The options that each side has for itself.
struct PerfOptions : Workload {
  std::vector<std::string> workload_arguments;  // the command-line arguments of the workload
  // The arguments in which this run differs from the others of a comparison.
  std::vector<std::string> run_arguments;
  std::string plugin;
  std::string nccl = "libnccl.so.2";
  int device = 0;
  bool server = false;
  std::string client;  // the server's host name or address
  uint16_t port = 18590;
  double wait_s = -1;  // for the other host; -1: the default
  double last_words_s = 0.3;
  std::string calibrate;  // the tuning file to write
  OutputOptions output;
  bool verbose = false;
  int child = -1;  // set in the processes that the tool starts; 0 begins each exchange, 1 answers

  bool has_two_hosts() const { return server || !client.empty(); }
};

Parsed<PerfOptions> parse_options(int argc, const char* const* argv);

// Sets the workload from a client's arguments. Throws ToolError if this side cannot use them.
void adopt_workload(PerfOptions& options, const std::vector<std::string>& arguments);

// The options of one run of a comparison. The transports alternate in running first.
PerfOptions make_run_options(const PerfOptions& options, unsigned run);

const char* describe_protocol(Protocol protocol);

}  // namespace verbena::tools::perf
