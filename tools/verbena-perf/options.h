#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace verbena::tools::perf {

enum class Protocol { kSimple, kLl, kLl128 };

struct Options {
  std::string plugin;
  int abi_version = 12;
  std::vector<uint64_t> sizes_bytes;
  uint64_t iterations = 0;  // 0: chosen by size
  uint64_t warmup = 20;
  unsigned window = 8;
  unsigned consume_lag = 0;
  int rails = 1;
  int device = 0;
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
  bool json = false;
  bool csv = false;
  bool verbose = false;
  int child = -1;  // set in the two processes that the tool starts
};

struct ParsedOptions {
  Options options;
  int exit_status = -1;  // >= 0: leave with it (help, or a bad option that has been reported)
};

ParsedOptions parse_options(int argc, const char* const* argv);

const char* describe_protocol(Protocol protocol);

}  // namespace verbena::tools::perf
