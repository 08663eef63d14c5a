// Where the ranks of a context first meet: a listener and a thread that tells every rank where its parent in
// the tree is. It ends by itself: when every rank was told, when its time is over (those who wait are told
// who never came), or when it is destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/socket.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "bootstrap/link.h"
#include "bootstrap/messages.h"
#include "bootstrap/tree_carrier.h"

namespace verbena::bootstrap {

inline constexpr size_t kUniqueIdBytes = 128;

// The 128 bytes by which the ranks of a context find each other: one process makes them, the application
// carries them to all. Opaque to applications. May come from anywhere: parse() says whether it is one.
struct UniqueId {
  uint8_t bytes[kUniqueIdBytes] = {};

  bool operator==(const UniqueId&) const = default;
};
static_assert(sizeof(UniqueId) == kUniqueIdBytes);

// What it holds.
struct Meeting {
  base::SocketAddress address;  // of the rendezvous
  Nonce nonce{};                // who does not know it is of another job; crosses the network
  Nonce secret{};               // proven, never sent: the key of a job without one; zeros: there is none
};

UniqueId make_id(const Meeting& meeting);
// Logged: no id of ours, or another version's.
base::Result<Meeting> parse(const UniqueId& id);

// Opens a rendezvous on the interface that VERBENA_SOCKET_IFNAME selects and lets it run until
// every rank came, VERBENA_BOOTSTRAP_TIMEOUT_MS is over, or the library is unloaded.
base::Result<UniqueId> make_unique_id();

class Rendezvous {
 public:
  // At meeting.address, or at a port of its own choice on the interface that the parameters select if that is
  // none.
  static base::Result<std::unique_ptr<Rendezvous>> open(const Meeting& meeting, int64_t timeout_ms);
  // The same at a listener that stands already.
  static base::Result<std::unique_ptr<Rendezvous>> open_at(base::Listener listener, const Meeting& meeting,
                                                           int64_t timeout_ms);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const UniqueId& id() const { return id_; }
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }

 private:
  struct Caller {
    explicit Caller(Link its_link, int64_t patience_ms)
        : link(std::move(its_link)), deadline(base::Deadline::after_ms(patience_ms)) {}
    Link link;
    base::Deadline deadline;  // for saying who it is
    std::optional<Registration> registration;
    bool is_answered = false;
  };

  Rendezvous(base::Listener listener, const Meeting& meeting, Proof proof, int64_t timeout_ms);
  base::Outcome start();
  void run();
  void accept_all();
  void send_stranger_away();
  void serve(Caller& caller);
  void judge(Link& link);
  void take_registration(Caller& caller);
  void notice_the_dead();
  void tell_parents();
  void tell_failure();
  void wait();
  bool is_done() const;
  std::string describe_missing() const;

  base::Listener listener_;
  base::FileDescriptor stop_;  // an eventfd: destroyed
  UniqueId id_;
  Nonce nonce_;
  Proof proof_;  // with the key as it was when this was opened
  base::Deadline deadline_;
  pid_t owner_pid_ = 0;
  std::thread thread_;
  std::atomic<bool> has_ended_{false};  // released by the thread, its last act

  // The thread's alone.
  bool is_overdue_ = false, is_stopped_ = false;
  std::string reason_;        // why it fails before its time
  uint32_t count_ranks_ = 0;  // as the first rank says; 0: nobody came
  uint32_t came_ = 0, told_ = 0;
  std::vector<std::optional<base::SocketAddress>> addresses_;  // by rank
  std::vector<bool> is_answered_;                              // by rank
  std::vector<std::unique_ptr<Caller>> callers_;
};

// A rank's one talk with the rendezvous: here am I, where is my parent?

enum class Patience : uint8_t {
  kNone,           // the rendezvous stands already, as its id was made before
  kUntilDeadline,  // it may come later, and another one may be at its address until then
};

// Where the parent awaits us; no address for rank 0. `own` is where our children find us.
base::Result<base::SocketAddress> ask_for_parent(const Meeting& meeting, const TreeLinks::Place& place,
                                                 const base::SocketAddress& own, base::Deadline deadline,
                                                 Patience patience = Patience::kNone);

}  // namespace verbena::bootstrap
