// A rank's part of symmetric memory: heap, windows, teams and the way to the others. What verbena.h offers,
// in our own types.
//
// Collective calls are made by all ranks in the same order, by one thread a rank at a time, with the
// context's GPU current; each returns within VERBENA_BOOTSTRAP_TIMEOUT_MS. A failed one leaves windows and
// teams as they were. The others may be called from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/own_process.h"
#include "bootstrap/bootstrap.h"
#include "device/put_queue/abort_word.h"
#include "device/symm/alias_table.h"
#include "device/symm/multicast.h"
#include "device/symm/remote.h"
#include "device/symm/stream_call.h"
#include "device/symm/team.h"
#include "device/symm/watch.h"
#include "device/symm/window_memory.h"
#include "device/symm/workspace.h"

namespace verbena::symm {

// Equal on all ranks.
struct ContextSettings {
  base::SymmPath path = base::SymmPath::kAuto;
  uint64_t heap_bytes = 0;
  uint32_t teams = 0;
  uint64_t timeout_ns = 0;  // of waits in kernels; each rank's own
  bool multicast = false;   // asked for; used where all ranks can

  static ContextSettings from_parameters();
  // At the heap's begin, in the first window.
  uint64_t measure_words(uint32_t count_ranks) const;
};

class Context;

// Memory at the same offset of every rank's heap. Owned by its context.
struct ContextWindow {
  Context* context = nullptr;
  Window place;                   // in the heap; its region on the NIC
  std::byte* address = nullptr;   // of this rank's; of a registered range the alias of its first byte
  uint64_t length_bytes = 0;      // as it was asked for
  const void* origin = nullptr;   // what was registered
  std::optional<uint32_t> alias;  // of it in the table that kernels look at
  uint32_t references = 1;        // registrations
  base::MemoryPiece piece;
  WindowMemory memory;
  MulticastBinding binding;
};

class Context {
 public:
  // Collective. On the calling thread's current GPU; in host memory if there is none. Over a borrowed heap
  // settings of heap and path do not count.
  static base::Result<std::unique_ptr<Context>> create(bootstrap::Bootstrap bootstrap,
                                                       const ContextSettings& settings,
                                                       std::optional<BorrowedHeap> borrowed = {});
  // Not collective: what peers have under way may or may not happen. No kernel uses the context any more.
  ~Context() = default;
  // Collective, the last call before destruction, so that nobody's leaving is taken for a failure.
  base::Outcome leave();
  // Not collective: nothing of this rank is moved and nobody is watched from now on; only destruction may
  // follow.
  void end_threads();

  const base::OwnProcess& process() const { return process_; }
  uint32_t rank() const { return bootstrap_.rank(); }
  uint32_t count_ranks() const { return bootstrap_.count_ranks(); }
  int gpu() const { return heap_->owner().gpu; }

  // Collective. Zero-filled; at least `length_bytes`.
  base::Result<ContextWindow*> allocate_window(uint64_t length_bytes);
  // Collective. Memory of the caller's that can be shared (base::find_piece()), the same part of a piece of
  // the same length on all ranks. It gets a second address, the window's; the same range of the same
  // allocations on all ranks again gets the same window. Other memory at an address that was registered gets
  // a new one, and the address is no longer found as the old one's.
  base::Result<ContextWindow*> register_window(void* address, uint64_t length_bytes);
  // Collective, with the same window. Registered ones go with their last registration, when what the ranks'
  // kernels asked for before is complete.
  base::Outcome free_window(ContextWindow& window);
  // By an address of the window, or of what was registered; null: in none.
  ContextWindow* find_window(const void* address);
  // Where loads and stores of this rank find the window of `rank`; null: out of reach.
  std::byte* find_peer(const ContextWindow& window, uint32_t rank) const;

  Team& world() { return first_team(0); }
  Team& in_reach() { return first_team(1); }
  // Collective over the world; null for a rank that is in no team: a negative color. A rank outside of
  // `parent` gives null for it, and gets null.
  base::Result<Team*> split_team(const Team* parent, int64_t color, int64_t key);
  // Collective over the world: members give the same list, all others an empty one.
  base::Result<Team*> make_team(std::span<const uint32_t> ranks);
  // Collective over the world; members give the team, others null. Behind all that kernels asked for, its
  // words are as if it was new: waits that ended by time are forgotten. No kernel of any member uses it.
  base::Outcome reset_team(Team* team);
  // Not collective: when no kernel of any member uses it any more.
  void free_team(const Team& team);

  // Collective over the world, with the same shape: members give the team, others null. All ranks get a
  // workspace, for the collective calls below; kernels use it on members alone. It may outlive the team.
  base::Result<Workspace*> make_workspace(const Team* team, const WorkspaceShape& shape);
  // Collective. As reset_team(), and the slots too.
  base::Outcome reset_workspace(Workspace& workspace);
  // Collective. No kernel of any rank uses it any more.
  base::Outcome free_workspace(Workspace& workspace);

  // In the order of a stream of the context's GPU; not collective.
  base::Outcome enqueue(const Team& team, const StreamCall& call, void* stream) const;

  // Collective, on the host.
  base::Outcome barrier();
  // Collective: `all` has room for what each rank has at `mine`, rank 0's first.
  base::Outcome gather(std::span<const std::byte> mine, std::span<std::byte> all);
  // Collective: an error on all ranks if one has `mine`.
  base::Outcome agree(const base::Outcome& mine);
  // Collective: an error on all ranks if their numbers of `what` differ.
  base::Outcome compare_history(const char* what, uint64_t count, uint64_t history);
  // Until all is complete, here and at the peers, that this rank's kernels asked for that have ended; from
  // any thread. A borrowed heap's network is asked through its own library: an error where that is needed.
  base::Outcome quiet();
  // Ends all waits of this rank's kernels, now and later.
  void end_waits() { abort_->raise(SymmAbort::kByUser); }
  SymmAbort state() const { return abort_->value(); }
  // Why the context has failed; empty: it has not.
  std::string error() const;
  // Of one team, or of each team and workspace, with the first one's status.
  base::Result<TeamFailure> find_failure(const Team& team) const;
  base::Result<TeamFailure> find_failures() const;

 private:
  struct WindowProposal;

  Context(bootstrap::Bootstrap bootstrap, const ContextSettings& settings, HeapLease lease)
      : lease_(std::move(lease)), bootstrap_(std::move(bootstrap)), settings_(settings) {}

  base::Outcome prepare(base::MemoryOwner owner, const BorrowedHeap* borrowed);
  base::Outcome compare_settings(base::MemoryOwner owner, const HeapBackend& backend);
  base::Outcome check_write_order(base::MemoryOwner owner);
  base::Outcome make_first_teams();
  SymmContext describe_common() const;
  Team& first_team(size_t index);
  base::Outcome check_reset(const Team* team) const;
  base::Outcome compare_team(const Team* team);
  void note_loss(const std::string& cause);

  base::Outcome quiet_all();
  base::Outcome check_gpu() const;
  base::Outcome compare(const WindowProposal& mine);
  base::Result<ContextWindow*> take_window(uint64_t length_bytes);
  void drop_window(ContextWindow& window);
  base::Result<ContextWindow*> make_window(std::unique_ptr<ContextWindow> window);
  base::Result<uint64_t> measure_workspace(const Team* team, const WorkspaceShape& shape);
  base::Result<std::unique_ptr<Team>> build_workspace(const Team& team, const WorkspaceShape& shape,
                                                      const ContextWindow& window) const;
  base::Outcome map_window(ContextWindow& window);
  uint32_t find_free_region() const;
  ContextWindow* find_registered(const void* address, uint64_t length_bytes, const base::MemoryPiece& piece);
  base::Outcome add_alias(ContextWindow& window);
  void remove_alias(ContextWindow& window);
  void forget_origin(const void* address, uint64_t length_bytes, const base::MemoryPiece& piece);
  base::Result<Team*> form_team(Membership mine, std::span<const uint32_t> expected);
  uint64_t find_taken_words() const;
  base::Result<std::unique_ptr<Team>> build_team(TeamPlace place);

  const base::OwnProcess process_;
  const HeapLease lease_;   // of a borrowed heap: the last to go
  std::mutex calls_mutex_;  // held by each collective call, and by the watch while it looks
  bootstrap::Bootstrap bootstrap_;
  ContextSettings settings_;
  std::optional<AbortWord> abort_;
  std::optional<Reach> reach_;
  std::optional<Heap> heap_;
  Multicast multicast_;
  std::optional<AliasTable> aliases_;                    // of registered memory
  std::mutex windows_mutex_;                             // guards the list
  std::vector<std::unique_ptr<ContextWindow>> windows_;  // the first has the teams' words
  bool meets_twice_ = false;                             // as SymmContext's
  std::unique_ptr<Remote> remote_;            // null: nobody is out of reach, or the heap is borrowed
  mutable std::mutex teams_mutex_;            // guards the lists: teams are freed by any thread
  std::vector<std::unique_ptr<Team>> teams_;  // the world, the ranks in reach, others
  std::vector<std::unique_ptr<Workspace>> workspaces_;
  mutable std::mutex loss_mutex_;
  std::string loss_;            // guarded: which rank has gone
  std::optional<Watch> watch_;  // looks at what is above
};

}  // namespace verbena::symm
