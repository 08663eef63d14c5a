// Process: the devices, which all contexts and communicators of the process share. Context: the state of one
// NCCL communicator.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "nccl/abi.h"
#include "nccl/receive_class.h"
#include "protocol/statistics.h"
#include "transport/link/nic.h"
#include "transport/transport.h"

namespace verbena::nccl {

// From this table version on, NCCL announces the operation of the following messages.
inline constexpr int kFirstTableWithAttributes = 11;
// In place of a table version: a context of NCCL's device API, which has no messages.
inline constexpr int kNoMessages = 0;

// NCCL refers to a context by its address. The context lives until it is finalized and all its communicators
// and listeners are closed, in any order.
struct Context {
  std::shared_ptr<Context> self;  // until it is finalized
  uint64_t communicator_id = 0;
  int traffic_class = -1;
  int abi_version = 0;
  abi::ProfilerCallback profiler = nullptr;
  std::shared_ptr<transport::NicRegistry> nics;

  // Values of the last setNetAttr before a message. The communicator's progress thread writes and reads them.
  std::atomic<uint32_t> operation{0}, algorithm{0}, protocol{0};
  // Value of the last setNetAttr before connect or accept. The service thread uses it.
  std::atomic<RegistrationOrder::Family> family{RegistrationOrder::Family::kUnknown};
  std::atomic<uint32_t> connections_ahead{0};  // expected receiving connections of one rank; 0: unknown

  std::mutex mutex;                                                    // guards what follows
  std::map<void*, std::unique_ptr<transport::Connecting>> connecting;  // by the address of NCCL's handle
  protocol::Statistics totals;
  int open_communicators = 0;

  DataAttributes data_attributes() const {
    return {operation.load(std::memory_order_relaxed), algorithm.load(std::memory_order_relaxed),
            protocol.load(std::memory_order_relaxed)};
  }
  // Drops NCCL's own reference. Open communicators stay usable.
  void finalize();
  void enter();
  // Records that a communicator closed. A context that is never finalized reports its totals when its last
  // communicator closes.
  void leave(const protocol::Statistics& statistics);
  void report() const;  // `mutex` is held
};

class Process {
 public:
  static Process& get();
  bool is_idle();  // returns whether no context exists
  // Returns the transport of VERBENA_TRANSPORT.
  static const transport::Transport& transport();

  // Creates a context. Context::finalize() ends it.
  base::Result<Context*> open_context(uint64_t communicator_id, int traffic_class, int abi_version);
  // Returns null before init.
  std::shared_ptr<transport::NicRegistry> nics();
  // Returns the oldest table version of all open contexts that have messages; 0 if there is none.
  int oldest_abi_version();
  // Finds a device. `who` is the calling entry's name, for the log line. `nics` is null before init.
  base::Result<const transport::Nic*> find_nic(const std::shared_ptr<transport::NicRegistry>& nics,
                                               int device, const char* who);
  base::Result<int> add_virtual_nic(std::span<const int> members);
  std::mutex& mutex() { return mutex_; }

 private:
  base::Outcome find_nics();
  void close_context(Context* context);  // for a context without references

  std::mutex mutex_;  // guards the registry's content too
  std::shared_ptr<transport::NicRegistry> nics_;
  std::weak_ptr<transport::NicRegistry> last_nics_;
  std::vector<std::vector<int>> virtual_nics_;  // members of each, in order of creation
  int contexts_ = 0, message_contexts_ = 0;
  int oldest_abi_version_ = 0;  // of contexts with messages
};

}  // namespace verbena::nccl
