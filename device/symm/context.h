// A rank's part of symmetric memory: heap, windows, teams and the connection to the other ranks. Context
// implements verbena.h with the project's internal types.
//
// All ranks must make the collective calls, in the same order. On each rank, only one thread at a time may
// make a collective call, and the context's GPU must be current. Collective calls return within
// VERBENA_BOOTSTRAP_TIMEOUT_MS. A failed call leaves windows and teams unchanged. Any thread may make all
// other calls.
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

// The settings of a context. A setting must be equal on all ranks, unless its comment says otherwise.
struct ContextSettings {
  base::SymmPath path = base::SymmPath::kAuto;
  uint64_t heap_bytes = 0;
  uint32_t teams = 0;
  uint64_t timeout_ns = 0;  // timeout of waits in kernels; may differ between ranks
  bool multicast = false;   // true if multicast is requested; it is used if all ranks support it

  static ContextSettings from_parameters();
  // Returns the size in bytes of the teams' words (signals and barriers), which lie at the beginning of the
  // heap, in the first window.
  uint64_t measure_words(uint32_t count_ranks) const;
};

class Context;

// A window: memory at the same offset of every rank's heap. The context owns the ContextWindow.
struct ContextWindow {
  Context* context = nullptr;
  Window place;  // offset in the heap, and the NIC's region
  // This rank's address of the window. For registered memory, this is the symmetric address of the first
  // byte.
  std::byte* address = nullptr;
  uint64_t length_bytes = 0;      // the length that the caller requested
  const void* origin = nullptr;   // the registered memory; null for an allocated window
  std::optional<uint32_t> alias;  // the window's entry in the alias table
  uint32_t references = 1;        // number of registrations
  base::MemoryPiece piece;
  WindowMemory memory;
  MulticastBinding binding;
};

class Context {
 public:
  // Creates a context on the calling thread's current GPU, or in host memory without a GPU. Collective. With
  // a borrowed heap, the settings of heap and path are ignored.
  static base::Result<std::unique_ptr<Context>> create(bootstrap::Bootstrap bootstrap,
                                                       const ContextSettings& settings,
                                                       std::optional<BorrowedHeap> borrowed = {});
  // Destroys the context. Not collective. Operations of peers that are still outstanding may or may not take
  // effect. No kernel may still be using the context.
  ~Context() = default;
  // Announces to the peers that this rank is about to destroy the context, so that the peers do not report a
  // failure. Collective. Afterwards, the caller may only destroy the context.
  base::Outcome leave();
  // Ends this rank's threads. Afterwards, operations in put queues are not carried out, and dead peers are
  // not detected. Not collective. Afterwards, the caller may only destroy the context.
  void end_threads();

  const base::OwnProcess& process() const { return process_; }
  uint32_t rank() const { return bootstrap_.rank(); }
  uint32_t count_ranks() const { return bootstrap_.count_ranks(); }
  int gpu() const { return heap_->owner().gpu; }

  // Allocates a zero-filled window of at least `length_bytes`. Collective.
  base::Result<ContextWindow*> allocate_window(uint64_t length_bytes);
  // Registers shareable memory of the caller (base::find_piece()) as a window. Collective. On all ranks, the
  // range must be the same part of an allocation of the same length. The window gives the memory a second,
  // symmetric address. Registering the same range of the same allocations again returns the same window. If
  // the application has replaced the allocation at this address, the call returns a new window, and
  // find_window() no longer finds the old window by this address.
  base::Result<ContextWindow*> register_window(void* address, uint64_t length_bytes);
  // Frees a window. Collective; all ranks pass the same window. A registered window is freed with its last
  // registration. Waits for earlier requests of the ranks' kernels.
  base::Outcome free_window(ContextWindow& window);
  // Finds a window by one of its addresses or by an address of the registered memory. Returns null if there
  // is no such window.
  ContextWindow* find_window(const void* address);
  // Returns the address at which this rank has mapped `rank`'s memory of the window, or null if this memory
  // is not mapped.
  std::byte* find_peer(const ContextWindow& window, uint32_t rank) const;

  Team& world() { return first_team(0); }
  Team& in_reach() { return first_team(1); }
  // Splits a team. Collective over the world. Returns null for a negative color. Ranks outside `parent` pass
  // null and get null.
  base::Result<Team*> split_team(const Team* parent, int64_t color, int64_t key);
  // Creates a team. Collective over the world. Members pass the same list of ranks; all other ranks pass an
  // empty list and get null.
  base::Result<Team*> make_team(std::span<const uint32_t> ranks);
  // Resets a team's words to the values that they have in a new team. This clears timeouts. Collective over
  // the world. Members pass the team; other ranks pass null. Waits for earlier requests of kernels. No kernel
  // of any member may be using the team.
  base::Outcome reset_team(Team* team);
  // Frees a team. Not collective. No kernel of any member may still be using the team.
  void free_team(const Team& team);

  // Creates a workspace. Collective over the world; all ranks pass the same shape. Members pass the team;
  // other ranks pass null. All ranks get a workspace for the collective calls below, but only kernels of
  // members can use it. The workspace may outlive the team.
  base::Result<Workspace*> make_workspace(const Team* team, const WorkspaceShape& shape);
  // Like reset_team(), and also clears the slots. Collective.
  base::Outcome reset_workspace(Workspace& workspace);
  // Frees a workspace. Collective. No kernel of any rank may still be using the workspace.
  base::Outcome free_workspace(Workspace& workspace);

  // Enqueues a call on a stream of the context's GPU. Not collective.
  base::Outcome enqueue(const Team& team, const StreamCall& call, void* stream) const;
  // Enqueues a put of any number of pieces. If the arguments are invalid, nothing is enqueued.
  base::Outcome enqueue_pieces(const Team& team, std::span<const SymmPiece> pieces, uint32_t peer,
                               void* stream) const;

  // Waits until the host threads of all ranks have made this call. Collective.
  base::Outcome barrier();
  // Gathers `mine` of all ranks into `all`, in rank order. Collective.
  base::Outcome gather(std::span<const std::byte> mine, std::span<std::byte> all);
  // Returns an error on all ranks if `mine` is an error on any rank. Collective.
  base::Outcome agree(const base::Outcome& mine);
  // Returns an error on all ranks if `count` or `history` differ between ranks. The error's text contains
  // `what`, which names the object that was used, for example "a pool". Collective.
  base::Outcome compare_history(const char* what, uint64_t count, uint64_t history);
  // Waits until all requests of this rank's finished kernels are complete here and at the peers. Any thread
  // may call it. Returns an error if the heap is borrowed and the quiet function of the other library is
  // needed.
  base::Outcome quiet();
  // Aborts all current and future waits of this rank's kernels.
  void end_waits() { abort_->raise(SymmAbort::kByUser); }
  SymmAbort state() const { return abort_->value(); }
  // Returns why the context has failed, or an empty text if it has not failed.
  std::string error() const;
  // find_failure() returns the failure of one team. find_failures() returns the failures of all teams and
  // workspaces together, with the status of the first failure.
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
  const HeapLease lease_;   // only for a borrowed heap; destroyed last
  std::mutex calls_mutex_;  // held by collective calls, and by watch_ during a check
  bootstrap::Bootstrap bootstrap_;
  ContextSettings settings_;
  std::optional<AbortWord> abort_;
  std::optional<Reach> reach_;
  std::optional<Heap> heap_;
  Multicast multicast_;
  std::optional<AliasTable> aliases_;                    // for registered memory
  std::mutex windows_mutex_;                             // guards windows_
  std::vector<std::unique_ptr<ContextWindow>> windows_;  // the first window contains the teams' words
  bool meets_twice_ = false;                             // see SymmContext
  std::unique_ptr<Remote> remote_;            // null if all memory is mapped, or the heap is borrowed
  mutable std::mutex teams_mutex_;            // guards teams_ and workspaces_; any thread may free a team
  std::vector<std::unique_ptr<Team>> teams_;  // the world team, the team of the mapped ranks, all other teams
  std::vector<std::unique_ptr<Workspace>> workspaces_;
  mutable std::mutex loss_mutex_;
  std::string loss_;            // guarded by loss_mutex_; says which rank has exited
  std::optional<Watch> watch_;  // uses the members above, so it is destroyed first
};

}  // namespace verbena::symm
