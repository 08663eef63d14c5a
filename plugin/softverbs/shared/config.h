// The settings from the environment (SOFTVERBS_*), and the only function that writes to stderr.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::softverbs {

inline constexpr uint32_t kMaxDevices = 8;

// The settings from the environment, read once, at the first call into the library.
struct Config {
  uint32_t devices = 1;
  bool has_device_count = false;  // SOFTVERBS_DEVICES was set
  std::string netdevs;            // the rails' network interfaces or addresses, "auto" or "none"
  bool force_wire = false;        // even between processes of one host
  uint32_t port = 0;              // of slot 0 on the network
  uint32_t wire_threads = 0;      // of each rail's address; 0: by CPUs
  uint32_t streams = 0;           // TCP connections of a link between two processes
  std::string directory;          // where the shared tables live; empty: /dev/shm
  std::string key_file;           // of the job's key; empty: none
  bool encryption = false;        // of what goes to other hosts; needs a key
  // Whether to listen without a key at an address that other hosts may reach.
  bool insecure = false;
  bool ptracer = true;                        // other processes of the user may attach, where Yama asks
  std::string job;                            // processes see each other only within one job
  uint64_t inline_copy_bytes = 256ull << 10;  // larger work requests go to the rail's worker
  uint32_t spin_polls = 0;                    // empty polls before a poller starts to yield its CPU
  uint64_t worker_spin_ns = 0;                // how long a rail's worker polls for work before it sleeps
  bool ordered_lines = false;  // LL128 lines appear in order between processes, at a fifth of the speed
  bool gpu = true;             // whether CUDA pointers may be registered
  bool gpu_batches = true;     // whether copies of sends to and from a GPU are issued many at a time
};

const Config& get_config();

// Writes one line to stderr: the library has no logger of the application.
void warn(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace verbena::softverbs
