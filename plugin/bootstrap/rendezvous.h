// The first connection point of a context's ranks: a listener, and a thread that sends every rank the address
// of its parent in the tree. It ends when every rank has its answer, when its timeout is over (then it tells
// waiting ranks which ranks are missing), or when it is destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/socket.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "base/wake_event.h"
#include "bootstrap/callers.h"
#include "bootstrap/frame_link.h"
#include "bootstrap/messages.h"
#include "bootstrap/tree_carrier.h"

namespace verbena::bootstrap {

inline constexpr size_t kUniqueIdBytes = 128;

// The 128 bytes by which the ranks of a context find each other. One process creates them, and the
// application distributes them to all ranks. Opaque to applications. A received id is untrusted; parse()
// checks it.
struct UniqueId {
  uint8_t bytes[kUniqueIdBytes] = {};

  bool operator==(const UniqueId&) const = default;
};
static_assert(sizeof(UniqueId) == kUniqueIdBytes);

// The content of a unique id.
struct Meeting {
  base::SocketAddress address;  // of the rendezvous
  Nonce nonce{};                // identifies the job; sent over the network
  Nonce secret{};               // replaces the job key; proven but never sent; zeros: no secret
};

UniqueId make_id(const Meeting& meeting);
// Reads a unique id. Fails, and logs the error, if the bytes are not a unique id of this version.
base::Result<Meeting> parse(const UniqueId& id);

// Opens a rendezvous on the interface that VERBENA_SOCKET_IFNAME selects and lets it run until
// every rank came, VERBENA_BOOTSTRAP_TIMEOUT_MS is over, or the library is unloaded.
base::Result<UniqueId> make_unique_id();

class Rendezvous {
 public:
  // Listens at meeting.address; if that is not set, at a free port of the interface that the parameters
  // select.
  static base::Result<std::unique_ptr<Rendezvous>> open(const Meeting& meeting, int64_t timeout_ms);
  // Like open(), with an existing listener.
  static base::Result<std::unique_ptr<Rendezvous>> open_at(base::Listener listener, const Meeting& meeting,
                                                           int64_t timeout_ms);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const UniqueId& id() const { return id_; }
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }

 private:
  struct Guest {  // of our job
    explicit Guest(FrameLink its_link)
        : link(std::move(its_link)), deadline(base::Deadline::after_ms(Callers::kIntroductionMs)) {}
    FrameLink link;
    base::Deadline deadline;  // for its registration
    std::optional<Registration> registration;
    bool is_answered = false;
  };

  Rendezvous(base::Listener listener, base::WakeEvent stop, const Meeting& meeting, Proof proof,
             int64_t timeout_ms);
  base::Outcome start();
  void run();
  void serve(Guest& guest);
  Callers::Verdict judge(const Hello& hello) const;
  void take_registration(Guest& guest);
  void notice_the_dead();
  void tell_parents();
  void tell_failure();
  void wait();
  bool is_done() const;
  std::string describe_missing() const;

  Callers callers_;       // uses the key that was loaded when the rendezvous was opened
  base::WakeEvent stop_;  // rung by the destructor
  UniqueId id_;
  Nonce nonce_;
  base::Deadline deadline_;
  std::thread thread_;
  std::atomic<bool> has_ended_{false};  // stored with release by the thread, as its last action

  // Used by the thread only.
  bool is_overdue_ = false, is_stopped_ = false;
  std::string reason_;        // the reason of a failure before the deadline
  uint32_t count_ranks_ = 0;  // from the first rank; 0: no rank has come
  uint32_t came_ = 0, told_ = 0;
  std::vector<std::optional<base::SocketAddress>> addresses_;  // by rank
  std::vector<bool> is_answered_;                              // by rank
  std::vector<std::unique_ptr<Guest>> guests_;
};

// How long a rank retries to reach the rendezvous.

enum class Patience : uint8_t {
  kNone,           // the rendezvous already exists, because its id was made before
  kUntilDeadline,  // it may start later, and another one may be at its address until then
};

// Registers this rank at the rendezvous, and returns the address of its parent; an empty address on rank 0.
// `own` is the address to which this rank's children connect.
base::Result<base::SocketAddress> ask_for_parent(const Meeting& meeting, const TreeLinks::Place& place,
                                                 const base::SocketAddress& own, base::Deadline deadline,
                                                 Patience patience = Patience::kNone);

}  // namespace verbena::bootstrap
