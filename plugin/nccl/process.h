// What the process shares: the devices, found once and kept while any context or communicator needs them; and
// what one NCCL communicator has: its context.
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
#include "transport/datagram/meeting.h"
#include "transport/link/nic.h"
#include "transport/setup/connector.h"

namespace verbena::nccl {

// From this table on NCCL says what the messages that follow belong to.
inline constexpr int kFirstTableWithAttributes = 11;
// In place of a table's number: a context of NCCL's device API, which has no messages.
inline constexpr int kNoMessages = 0;

// NCCL knows it by its address. It lives until it is finalized and the last of its communicators and
// listeners is closed, in whatever order.
struct Context {
  std::shared_ptr<Context> self;  // until it is finalized
  uint64_t communicator_id = 0;
  int traffic_class = -1;
  int abi_version = 0;
  abi::ProfilerCallback profiler = nullptr;
  std::shared_ptr<transport::NicRegistry> nics;

  // Of the last setNetAttr before a message; written and read by the communicator's progress thread.
  std::atomic<uint32_t> operation{0}, algorithm{0}, protocol{0};
  // Of the last setNetAttr before connect or accept; service thread.
  std::atomic<RegistrationOrder::Family> family{RegistrationOrder::Family::kUnknown};
  std::atomic<uint32_t> connections_ahead{0};  // receiving ones of one rank; 0: not known

  std::mutex mutex;                                                   // guards what follows
  std::map<void*, std::unique_ptr<transport::Connector>> connecting;  // by the address of NCCL's handle
  std::map<void*, std::unique_ptr<transport::datagram::Connector>> calling;  // the same, by datagrams
  protocol::Statistics totals;
  int open_communicators = 0;

  DataAttributes data_attributes() const {
    return {operation.load(std::memory_order_relaxed), algorithm.load(std::memory_order_relaxed),
            protocol.load(std::memory_order_relaxed)};
  }
  // Drops NCCL's own reference. What is open goes on.
  void finalize();
  void enter();
  // A communicator closed. Contexts that are never finalized report when their last one closes.
  void leave(const protocol::Statistics& statistics);
  void report() const;  // `mutex` is held
};

class Process {
 public:
  static Process& get();
  bool is_idle();  // no context

  // Finalized by Context::finalize().
  base::Result<Context*> open_context(uint64_t communicator_id, int traffic_class, int abi_version);
  // Null before init.
  std::shared_ptr<transport::NicRegistry> nics();
  // Of the tables of messages that the open contexts came from; 0 if there is none.
  int oldest_abi_version();
  // `who` asks: the entry's name, for the log line. `nics` may be null (before init).
  base::Result<const transport::Nic*> find_nic(const std::shared_ptr<transport::NicRegistry>& nics,
                                               int device, const char* who);
  base::Result<int> add_virtual_nic(std::span<const int> members);
  std::mutex& mutex() { return mutex_; }

 private:
  base::Outcome find_nics();
  base::Outcome check_transport() const;
  void close_context(Context* context);  // that nobody refers to any more

  std::mutex mutex_;  // guards the registry's content too
  std::shared_ptr<transport::NicRegistry> nics_;
  std::weak_ptr<transport::NicRegistry> last_nics_;
  std::vector<std::vector<int>> virtual_nics_;  // members of each, in the order of their making
  int contexts_ = 0, message_contexts_ = 0;
  int oldest_abi_version_ = 0;  // of those with messages
};

}  // namespace verbena::nccl
