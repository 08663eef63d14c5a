#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/duration.h"
#include "common/output.h"

namespace verbena::tools::perf {

enum class Protocol { kSimple, kLl, kLl128 };
enum class Transport { kVerbena, kNcclIb };

// What is measured. Both sides must agree on it: a client gives it to its server, as the arguments it got.
struct Workload {
  Transport transport = Transport::kVerbena;
  bool against = false;  // both transports in turn
  unsigned rounds = 4;   // runs of each transport
  unsigned run = 0;      // which of all runs this is
  int abi_version = 12;
  std::vector<uint64_t> sizes_bytes;
  uint64_t iterations = 0;  // 0: chosen by size
  unsigned repeats = 0;     // timed passes a size and a run; 0 is resolved when options are parsed
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
  double timeout_s = kStepTimeoutS;

  unsigned count_runs() const { return against ? 2 * rounds : 1; }
};

// And what each side decides for itself.
struct Options : Workload {
  std::vector<std::string> workload_arguments;  // those of the command line that made the workload
  // What sets this run apart from the others of a comparison, as arguments.
  std::vector<std::string> run_arguments;
  std::string plugin;
  std::string nccl = "libnccl.so.2";
  int device = 0;
  bool server = false;
  std::string client;  // the server's host name or address
  uint16_t port = 18590;
  double wait_s = -1;  // for the other host to turn up; -1: the usual
  double last_words_s = 0.3;
  std::string calibrate;  // the tuning file to write
  OutputOptions output;
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

// The options of one run of a comparison. Transports take turns at going first.
Options make_run_options(const Options& options, unsigned run);

const char* describe_protocol(Protocol protocol);

}  // namespace verbena::tools::perf
