// Functions with NVSHMEM's names and arguments that work on a Verbena team, for kernels that were written or
// generated for NVSHMEM, such as TileScale's kernels. The functions use the team in the program's table
// (tilescale_ranks.cuh). The NVSHMEM library is not needed. As in NVSHMEM, only one thread, warp or block per
// rank may use a team's barriers at a time.
//
// Differences from NVSHMEM: calls return a SymmStatus, which is kUnreachable if the table has no team. Waits
// end within the context's timeout. Any 64-bit word in a window may be a signal. A team is the address of its
// SymmContext in GPU memory; NVSHMEM_TEAM_WORLD is the team of the table.
#ifndef VERBENA_DEVICE_NVSHMEM_NAMES_CUH
#define VERBENA_DEVICE_NVSHMEM_NAMES_CUH

#include "verbena/device/symm.cuh"
#include "verbena/device/tilescale_ranks.cuh"

#define NVSHMEM_SIGNAL_SET 9
#define NVSHMEM_SIGNAL_ADD 10
#define NVSHMEM_CMP_EQ 0
#define NVSHMEM_CMP_NE 1
#define NVSHMEM_CMP_GT 2
#define NVSHMEM_CMP_GE 3
#define NVSHMEM_CMP_LT 4
#define NVSHMEM_CMP_LE 5

using nvshmem_team_t = const verbena::SymmContext*;
inline constexpr nvshmem_team_t NVSHMEM_TEAM_WORLD = nullptr;

namespace verbena::device::detail {

// Returns `body(context)`, or kUnreachable if there is no team.
template <typename Body>
VERBENA_DEVICE SymmStatus by_team(nvshmem_team_t team, const Body& body) {
  if (team == NVSHMEM_TEAM_WORLD) team = tl::detail::find_team();
  return team == nullptr ? SymmStatus::kUnreachable : body(*team);
}

template <typename Group>
VERBENA_DEVICE SymmStatus signal_by_name(uint64_t* word, uint64_t value, int operation, int pe) {
  return by_team(NVSHMEM_TEAM_WORLD, [&](const SymmContext& world) {
    if (operation == NVSHMEM_SIGNAL_SET) return symm_put_value(world, word, value, pe, Group{});
    return operation == NVSHMEM_SIGNAL_ADD ? symm_add(world, word, value, pe, Group{}) : SymmStatus::kInvalid;
  });
}

template <bool kReusable, typename Group>
VERBENA_DEVICE SymmStatus put_by_name(void* destination, const void* source, size_t bytes, int pe) {
  return by_team(NVSHMEM_TEAM_WORLD, [&](const SymmContext& world) {
    Group{}.sync();  // any thread of the group may have written the source
    const SymmStatus status = symm_put_async(world, destination, source, bytes, pe, Group{});
    return kReusable && status == SymmStatus::kDone ? symm_flush(world, Group{}) : status;
  });
}

template <bool kReusable, typename Group>
VERBENA_DEVICE SymmStatus put_signal_by_name(void* destination, const void* source, size_t bytes,
                                             uint64_t* word, uint64_t value, int operation, int pe) {
  SymmStatus status = put_by_name<false, Group>(destination, source, bytes, pe);
  if (status == SymmStatus::kDone) status = signal_by_name<Group>(word, value, operation, pe);
  if (!kReusable || status != SymmStatus::kDone) return status;
  return by_team(NVSHMEM_TEAM_WORLD, [](const SymmContext& world) { return symm_flush(world, Group{}); });
}

template <bool kWaits, typename Group>
VERBENA_DEVICE SymmStatus get_by_name(void* destination, const void* source, size_t bytes, int pe) {
  return by_team(NVSHMEM_TEAM_WORLD, [&](const SymmContext& world) {
    if (kWaits) return symm_get(world, destination, source, bytes, pe, Group{});
    SymmRequest request;
    return symm_get_async(world, destination, source, bytes, pe, &request, Group{});
  });
}

VERBENA_DEVICE SymmCompare as_compare(int compare) {
  switch (compare) {
    case NVSHMEM_CMP_EQ:
      return SymmCompare::kEqual;
    case NVSHMEM_CMP_NE:
      return SymmCompare::kNotEqual;
    case NVSHMEM_CMP_GT:
      return SymmCompare::kGreater;
    case NVSHMEM_CMP_GE:
      return SymmCompare::kGreaterEqual;
    case NVSHMEM_CMP_LT:
      return SymmCompare::kLess;
    default:
      return SymmCompare::kLessEqual;
  }
}

}  // namespace verbena::device::detail

VERBENA_DEVICE int nvshmem_my_pe() {
  return static_cast<int>(tl::get_rank());
}
VERBENA_DEVICE int nvshmem_n_pes() {
  return static_cast<int>(tl::get_num_ranks());
}
VERBENA_DEVICE int nvshmem_team_my_pe(nvshmem_team_t team) {
  return team == NVSHMEM_TEAM_WORLD ? nvshmem_my_pe() : verbena::device::symm_team_rank(*team);
}
VERBENA_DEVICE int nvshmem_team_n_pes(nvshmem_team_t team) {
  return team == NVSHMEM_TEAM_WORLD ? nvshmem_n_pes() : verbena::device::symm_team_size(*team);
}
// Returns null if loads and stores do not reach the PE.
VERBENA_DEVICE void* nvshmem_ptr(const void* dest, int pe) {
  const verbena::SymmContext* const world = tl::detail::find_team();
  if (world == nullptr) return nullptr;
  return verbena::device::symm_lsa_ptr(*world, const_cast<void*>(dest), pe);
}

// Stores a value in the memory of a peer. Returns kUnreachable if stores do not reach the peer, because NICs
// write only 64-bit values (use nvshmemx_signal_op).
VERBENA_DEVICE verbena::SymmStatus nvshmem_int_p(int* dest, int value, int pe) {
  namespace vd = verbena::device;
  auto* const there = static_cast<int*>(nvshmem_ptr(dest, pe));
  if (there == nullptr) return verbena::SymmStatus::kUnreachable;
  vd::store_relaxed<vd::Scope::kSystem>(there, value);
  return verbena::SymmStatus::kDone;
}

// Orders this thread's earlier puts before its later puts. The call waits until puts by NICs are complete,
// because on a NIC a later put may overtake an earlier put. A signal takes effect after earlier puts to the
// same peer even without a fence.
VERBENA_DEVICE verbena::SymmStatus nvshmem_fence() {
  tl::memory_fence_sys();
  return verbena::device::detail::by_team(NVSHMEM_TEAM_WORLD, [](const verbena::SymmContext& world) {
    return world.has_remote == 0 ? verbena::SymmStatus::kDone
                                 : verbena::device::symm_quiet(world, verbena::device::ThreadGroup{});
  });
}
VERBENA_DEVICE verbena::SymmStatus nvshmem_quiet() {
  return verbena::device::detail::by_team(NVSHMEM_TEAM_WORLD, [](const verbena::SymmContext& world) {
    return verbena::device::symm_quiet(world, verbena::device::ThreadGroup{});
  });
}

VERBENA_DEVICE verbena::SymmStatus nvshmemx_signal_op(uint64_t* sig_addr, uint64_t signal, int sig_op,
                                                      int pe) {
  return verbena::device::detail::signal_by_name<verbena::device::ThreadGroup>(sig_addr, signal, sig_op, pe);
}
// Returns the last value of the signal, even if the wait failed.
VERBENA_DEVICE uint64_t nvshmem_signal_wait_until(uint64_t* sig_addr, int cmp, uint64_t cmp_val) {
  namespace vd = verbena::device;
  uint64_t seen = 0;
  vd::detail::by_team(NVSHMEM_TEAM_WORLD, [&](const verbena::SymmContext& world) {
    return vd::symm_wait_until<uint64_t>(world, sig_addr, vd::detail::as_compare(cmp), cmp_val, &seen);
  });
  return seen;
}
VERBENA_DEVICE uint64_t nvshmem_signal_fetch(uint64_t* sig_addr) {
  return verbena::device::load_acquire<verbena::device::Scope::kSystem>(sig_addr);
}

// Define the functions for a thread, a warp and a block. When a put without `nbi` returns, its source may be
// reused. When a get without `nbi` returns, its data has arrived.
#define VERBENA_NAME_SCOPE(prefix, suffix, group)                                                          \
  VERBENA_DEVICE verbena::SymmStatus prefix##_barrier_all##suffix() {                                      \
    return verbena::device::detail::by_team(NVSHMEM_TEAM_WORLD, [](const verbena::SymmContext& world) {    \
      return tl::barrier_all(world, verbena::device::group{});                                             \
    });                                                                                                    \
  }                                                                                                        \
  VERBENA_DEVICE verbena::SymmStatus prefix##_sync_all##suffix() {                                         \
    return verbena::device::detail::by_team(NVSHMEM_TEAM_WORLD, [](const verbena::SymmContext& world) {    \
      return tl::sync_all(world, verbena::device::group{});                                                \
    });                                                                                                    \
  }                                                                                                        \
  VERBENA_DEVICE verbena::SymmStatus prefix##_putmem##suffix(void* dest, const void* source, size_t bytes, \
                                                             int pe) {                                     \
    return verbena::device::detail::put_by_name<true, verbena::device::group>(dest, source, bytes, pe);    \
  }                                                                                                        \
  VERBENA_DEVICE verbena::SymmStatus prefix##_putmem_nbi##suffix(void* dest, const void* source,           \
                                                                 size_t bytes, int pe) {                   \
    return verbena::device::detail::put_by_name<false, verbena::device::group>(dest, source, bytes, pe);   \
  }                                                                                                        \
  VERBENA_DEVICE verbena::SymmStatus prefix##_putmem_signal##suffix(void* dest, const void* source,        \
                                                                    size_t bytes, uint64_t* sig_addr,      \
                                                                    uint64_t signal, int sig_op, int pe) { \
    return verbena::device::detail::put_signal_by_name<true, verbena::device::group>(                      \
        dest, source, bytes, sig_addr, signal, sig_op, pe);                                                \
  }                                                                                                        \
  VERBENA_DEVICE verbena::SymmStatus prefix##_putmem_signal_nbi##suffix(                                   \
      void* dest, const void* source, size_t bytes, uint64_t* sig_addr, uint64_t signal, int sig_op,       \
      int pe) {                                                                                            \
    return verbena::device::detail::put_signal_by_name<false, verbena::device::group>(                     \
        dest, source, bytes, sig_addr, signal, sig_op, pe);                                                \
  }                                                                                                        \
  VERBENA_DEVICE verbena::SymmStatus prefix##_getmem##suffix(void* dest, const void* source, size_t bytes, \
                                                             int pe) {                                     \
    return verbena::device::detail::get_by_name<true, verbena::device::group>(dest, source, bytes, pe);    \
  }                                                                                                        \
  VERBENA_DEVICE verbena::SymmStatus prefix##_getmem_nbi##suffix(void* dest, const void* source,           \
                                                                 size_t bytes, int pe) {                   \
    return verbena::device::detail::get_by_name<false, verbena::device::group>(dest, source, bytes, pe);   \
  }                                                                                                        \
  template <typename T>                                                                                    \
  VERBENA_DEVICE verbena::SymmStatus prefix##_broadcast##suffix(                                           \
      nvshmem_team_t team, T* dest, const T* source, size_t nelems, int pe_root) {                         \
    return verbena::device::detail::by_team(team, [&](const verbena::SymmContext& of) {                    \
      return tl::broadcast(of, dest, source, nelems, pe_root, verbena::device::group{});                   \
    });                                                                                                    \
  }                                                                                                        \
  VERBENA_DEVICE verbena::SymmStatus prefix##_broadcastmem##suffix(                                        \
      nvshmem_team_t team, void* dest, const void* source, size_t bytes, int pe_root) {                    \
    return prefix##_broadcast##suffix(team, static_cast<char*>(dest), static_cast<const char*>(source),    \
                                      bytes, pe_root);                                                     \
  }                                                                                                        \
  template <typename T>                                                                                    \
  VERBENA_DEVICE verbena::SymmStatus prefix##_fcollect##suffix(nvshmem_team_t team, T* dest,               \
                                                               const T* source, size_t nelems) {           \
    return verbena::device::detail::by_team(team, [&](const verbena::SymmContext& of) {                    \
      return tl::fcollect(of, dest, source, nelems, verbena::device::group{});                             \
    });                                                                                                    \
  }                                                                                                        \
  VERBENA_DEVICE verbena::SymmStatus prefix##_fcollectmem##suffix(nvshmem_team_t team, void* dest,         \
                                                                  const void* source, size_t bytes) {      \
    return prefix##_fcollect##suffix(team, static_cast<char*>(dest), static_cast<const char*>(source),     \
                                     bytes);                                                               \
  }
VERBENA_NAME_SCOPE(nvshmem, , ThreadGroup)
VERBENA_NAME_SCOPE(nvshmemx, _warp, WarpGroup)
VERBENA_NAME_SCOPE(nvshmemx, _block, BlockGroup)
#undef VERBENA_NAME_SCOPE

#endif
