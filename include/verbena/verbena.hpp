// C++ wrapper of verbena.h. Objects own the handles and free them, and errors are thrown as exceptions.
// verbena.h documents each call, its units, and whether the call is collective. Objects are movable and not
// thread-safe. Destroy windows, teams, workspaces and pools before their context. A destructor is collective
// if the C function that it calls is collective. Destructors log errors and do not throw.
#ifndef VERBENA_VERBENA_HPP
#define VERBENA_VERBENA_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "verbena/symm_abi.h"
#include "verbena/verbena.h"

namespace verbena {

class Failure : public std::runtime_error {
 public:
  Failure(verbena_result result, const std::string& text) : std::runtime_error(text), result_(result) {}
  verbena_result result() const { return result_; }

 private:
  verbena_result result_;
};

// Throws Failure with the text of verbena_last_error(), unless `result` is VERBENA_SUCCESS.
inline void check(verbena_result result) {
  if (result == VERBENA_SUCCESS) return;
  const std::string text = verbena_last_error();
  throw Failure(result, text.empty() ? verbena_describe(result) : text);
}

class SymmetricWindow {
 public:
  explicit SymmetricWindow(verbena_window* handle) : handle_(handle) {}

  // Returns the symmetric address of this rank's memory.
  template <typename T = std::byte>
  T* address() const {
    return static_cast<T*>(verbena_window_address(handle_.get()));
  }
  size_t length_bytes() const { return verbena_window_length(handle_.get()); }
  // Returns the address at which this rank's GPU accesses the window of `rank`, or null if loads and stores
  // do not reach that rank.
  template <typename T = std::byte>
  T* peer_address(uint32_t rank) const {
    return static_cast<T*>(verbena_window_peer_address(handle_.get(), rank));
  }
  verbena_window* handle() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(verbena_window* handle) const { verbena_window_free(handle); }
  };
  std::unique_ptr<verbena_window, Free> handle_;
};

class SymmetricTeam {
 public:
  explicit SymmetricTeam(verbena_team* handle, bool is_owned = true) : handle_(handle, Free{is_owned}) {}

  // Returns false on a rank that is not a member of the team.
  explicit operator bool() const { return handle_ != nullptr; }
  uint32_t rank() const { return verbena_team_rank(handle_.get()); }
  uint32_t size() const { return verbena_team_size(handle_.get()); }
  uint32_t world_rank(uint32_t rank) const { return verbena_team_world_rank(handle_.get(), rank); }
  // Returns the context to pass to a kernel by value (const __grid_constant__ verbena::SymmContext). If the
  // context uses another library's heap, Context is the backend's context type, which derives from
  // SymmContext.
  template <typename Context = SymmContext>
  const Context& context() const {
    return *static_cast<const Context*>(verbena_team_host_context(handle_.get()));
  }
  // Returns the address of the context in GPU memory, to pass to a kernel as a pointer.
  template <typename Context = SymmContext>
  const Context* device_context() const {
    return static_cast<const Context*>(verbena_team_device_context(handle_.get()));
  }
  verbena_team* handle() const { return handle_.get(); }
  // Returns the 1024 words that the `meta_data` symbol of a TileScale program must contain
  // (device/tilescale_ranks.cuh). Throws if the team has more than 1021 ranks.
  std::vector<uint64_t> make_tilescale_table(const SymmetricWindow& window) const {
    constexpr size_t kWords = 1024, kFirstBase = 2;
    if (size() > kWords - kFirstBase - 1)
      throw Failure(VERBENA_INVALID_ARGUMENT, "TileScale's table holds at most 1021 ranks");
    std::vector<uint64_t> table(kWords);
    table[0] = rank();
    table[1] = size();
    for (uint32_t peer = 0; peer < size(); ++peer)
      table[kFirstBase + peer] = reinterpret_cast<uint64_t>(window.peer_address(world_rank(peer)));
    table[kWords - 1] = reinterpret_cast<uint64_t>(device_context());
    return table;
  }

  // Call the corresponding verbena_*_on_stream() function.
  void barrier_on(void* stream, uint32_t barrier = 0) const {
    check(verbena_barrier_on_stream(handle_.get(), barrier, stream));
  }
  void signal_on(void* stream, uint32_t signal, uint32_t peer, uint64_t value = 1,
                 SymmSignalOperation operation = SymmSignalOperation::kAdd) const {
    check(verbena_signal_on_stream(handle_.get(), signal, peer, value, static_cast<int>(operation), stream));
  }
  void wait_on(void* stream, uint32_t signal, SymmCompare compare, int64_t value) const {
    check(verbena_wait_on_stream(handle_.get(), signal, static_cast<int>(compare), value, stream));
  }
  void put_on(void* stream, void* destination, const void* source, size_t length_bytes, uint32_t peer) const {
    check(verbena_put_on_stream(handle_.get(), destination, source, length_bytes, peer, stream));
  }
  void put_pieces_on(void* stream, const verbena_piece* pieces, size_t count, uint32_t peer) const {
    check(verbena_put_pieces_on_stream(handle_.get(), pieces, count, peer, stream));
  }
  void get_on(void* stream, void* destination, const void* source, size_t length_bytes, uint32_t peer) const {
    check(verbena_get_on_stream(handle_.get(), destination, source, length_bytes, peer, stream));
  }
  void quiet_on(void* stream) const { check(verbena_quiet_on_stream(handle_.get(), stream)); }

 private:
  struct Free {
    bool is_owned;
    void operator()(verbena_team* handle) const {
      if (is_owned) verbena_team_free(handle);
    }
  };
  std::unique_ptr<verbena_team, Free> handle_;
};

class SymmetricWorkspace {
 public:
  explicit SymmetricWorkspace(verbena_workspace* handle) : handle_(handle) {}

  // Returns false on a rank that is not a member of the team. Such a rank uses its workspace only in the
  // collective calls.
  explicit operator bool() const { return verbena_workspace_host_context(handle_.get()) != nullptr; }
  // Resets the workspace after a wait has timed out. Collective.
  void reset() { check(verbena_workspace_reset(handle_.get())); }
  // Throws Failure with the reason if the workspace has failed.
  void check_error() {
    char text[512] = "";
    const verbena_result result = verbena_workspace_get_error(handle_.get(), text, sizeof(text));
    if (result != VERBENA_SUCCESS) throw Failure(result, text);
  }
  size_t slot_bytes() const { return verbena_workspace_slot_bytes(handle_.get()); }
  // Returns the workspace to pass to a kernel by value (const __grid_constant__ verbena::SymmWorkspace<>).
  template <typename Context = SymmContext>
  const SymmWorkspace<Context>& workspace() const {
    return *static_cast<const SymmWorkspace<Context>*>(verbena_workspace_host_context(handle_.get()));
  }
  // Returns the address of the workspace in GPU memory, to pass to a kernel as a pointer.
  template <typename Context = SymmContext>
  const SymmWorkspace<Context>* device_workspace() const {
    return static_cast<const SymmWorkspace<Context>*>(verbena_workspace_device_context(handle_.get()));
  }
  // Returns the workspace's team, for the calls on streams.
  SymmetricTeam team() const {
    return SymmetricTeam(const_cast<verbena_team*>(verbena_workspace_team(handle_.get())), false);
  }
  verbena_workspace* handle() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(verbena_workspace* handle) const { verbena_workspace_free(handle); }
  };
  std::unique_ptr<verbena_workspace, Free> handle_;
};

class SymmetricPool {
 public:
  explicit SymmetricPool(verbena_pool* handle) : handle_(handle) {}

  // Throws Failure if the ranks have made different allocations. Collective.
  void check() { verbena::check(verbena_pool_check(handle_.get())); }
  uint32_t index() const { return verbena_pool_index(handle_.get()); }
  size_t max_used() const { return verbena_pool_max_used(handle_.get()); }
  verbena_pool* handle() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(verbena_pool* handle) const { verbena_pool_free(handle); }
  };
  std::unique_ptr<verbena_pool, Free> handle_;
};

class SymmetricContext {
 public:
  // Takes ownership of a context that another call created (backends.h).
  explicit SymmetricContext(verbena_context* handle) : handle_(handle) {}
  SymmetricContext(const verbena_unique_id& id, uint32_t rank, uint32_t count_ranks) {
    verbena_context* handle = nullptr;
    check(verbena_context_create(&id, rank, count_ranks, &handle));
    handle_.reset(handle);
  }
  static SymmetricContext from_environment() {
    verbena_context* handle = nullptr;
    check(verbena_context_create_from_environment(&handle));
    return SymmetricContext(handle);
  }
  static SymmetricContext from_all_gather(verbena_all_gather all_gather, void* argument, uint32_t rank,
                                          uint32_t count_ranks) {
    verbena_context* handle = nullptr;
    check(verbena_context_create_from_all_gather(all_gather, argument, rank, count_ranks, &handle));
    return SymmetricContext(handle);
  }
  // Creates a context over another library's symmetric memory.
  static SymmetricContext over_heap(const verbena_heap& heap, verbena_all_gather all_gather, void* argument,
                                    uint32_t rank, uint32_t count_ranks) {
    verbena_context* handle = nullptr;
    check(verbena_context_create_over_heap(&heap, all_gather, argument, rank, count_ranks, &handle));
    return SymmetricContext(handle);
  }

  uint32_t rank() const { return verbena_context_rank(handle_.get()); }
  uint32_t size() const { return verbena_context_size(handle_.get()); }
  void barrier() { check(verbena_context_barrier(handle_.get())); }
  void quiet() { check(verbena_context_quiet(handle_.get())); }
  void abort() { verbena_context_abort(handle_.get()); }
  // Throws Failure with the reason if the context or one of its teams has failed.
  void check_error() {
    char text[512] = "";
    const verbena_result result = verbena_context_get_error(handle_.get(), text, sizeof(text));
    if (result != VERBENA_SUCCESS) throw Failure(result, text);
  }

  SymmetricWindow allocate(size_t length_bytes) {
    verbena_window* window = nullptr;
    check(verbena_window_allocate(handle_.get(), length_bytes, &window));
    return SymmetricWindow(window);
  }
  SymmetricWindow register_memory(void* address, size_t length_bytes) {
    verbena_window* window = nullptr;
    check(verbena_window_register(handle_.get(), address, length_bytes, &window));
    return SymmetricWindow(window);
  }

  SymmetricPool create_pool(size_t length_bytes) {
    verbena_pool* pool = nullptr;
    check(verbena_pool_create(handle_.get(), length_bytes, &pool));
    return SymmetricPool(pool);
  }

  SymmetricTeam world() const { return SymmetricTeam(verbena_team_world(handle_.get()), false); }
  SymmetricTeam lsa() const { return SymmetricTeam(verbena_team_lsa(handle_.get()), false); }
  SymmetricTeam split(const SymmetricTeam& parent, int64_t color, int64_t key = 0) {
    verbena_team* team = nullptr;
    check(verbena_team_split(handle_.get(), parent.handle(), color, key, &team));
    return SymmetricTeam(team);
  }
  SymmetricTeam create_team(const std::vector<uint32_t>& ranks) {
    verbena_team* team = nullptr;
    check(verbena_team_create(handle_.get(), ranks.data(), ranks.size(), &team));
    return SymmetricTeam(team);
  }
  // Resets a team after a wait has timed out. Collective. Ranks that are not members pass an empty team.
  void reset(const SymmetricTeam& team) { check(verbena_team_reset(handle_.get(), team.handle())); }
  // Creates a workspace. Collective. Ranks that are not members pass an empty team.
  SymmetricWorkspace create_workspace(const SymmetricTeam& team, size_t slots_bytes, uint32_t blocks) {
    verbena_workspace* workspace = nullptr;
    check(verbena_workspace_create(handle_.get(), team.handle(), slots_bytes, blocks, &workspace));
    return SymmetricWorkspace(workspace);
  }
  verbena_context* handle() const { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(verbena_context* handle) const { verbena_context_destroy(handle); }
  };
  std::unique_ptr<verbena_context, Destroy> handle_;
};

}  // namespace verbena

#endif
