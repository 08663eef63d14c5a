// Network backend over NCCL's device API (2.28 and later). Members that loads and stores do not reach are
// called "out of reach". The backend reaches these members by GIN (GPU-initiated networking), with puts and
// signals of a device communicator. The heap is a window of the communicator (ncclCommWindowRegister) that
// starts at heap_begin. Compile kernels with the headers of the NCCL version that is used at run time.
//
// Limits of GIN, and their consequences:
// - Signals: GIN can add to its signals but cannot set them. When a rank resets a signal, it therefore writes
//   the negative of GIN's value to `remote_signals`. If members out of reach add to a signal, no rank may set
//   this signal before the signal's owner has reset it.
// - Completion: GIN reports when sources may be reused, but not when data has arrived at a peer. So
//   symm_quiet() guarantees only as much as symm_flush(). Use a signal or a barrier to make data visible.
// - Gets are not supported; GIN has gets only from NCCL 2.30 on. GIN cannot update words in windows. GIN
//   waits for queue space without a timeout.
//
// All operations use GIN context 0, in which a signal takes effect after all earlier puts to the same peer.
// For members out of reach, barriers use GIN signals instead of arrival words. So the arrival words of these
// members are free. Puts that send the value of a signal use these words as sources.
#ifndef VERBENA_DEVICE_BACKENDS_NCCL_CUH
#define VERBENA_DEVICE_BACKENDS_NCCL_CUH

#include <nccl_device.h>

#include "verbena/device/symm.cuh"

namespace verbena {

// The number of GIN signals that the device communicator must have (ncclDevCommRequirements::ginSignalCount).
inline constexpr uint32_t kNcclSymmSignals = kSymmSignals + 2 * kSymmBarriers;

struct NcclSymmContext : SymmContext {
  const ncclDevComm* communicator;  // in GPU memory; null, or without GIN contexts, if GIN is not used
  ncclWindow_t window;              // window of the heap
  // A second window for a buffer of the application; may be null. The symmetric addresses of the buffer are
  // buffer_begin to buffer_end.
  ncclWindow_t buffer;
  uint64_t buffer_begin, buffer_end;
};

}  // namespace verbena

namespace verbena::device {

template <>
struct SymmNetwork<NcclSymmContext> {
  using Context = NcclSymmContext;

  static constexpr bool kGets = false;
  static constexpr bool kUpdates = false;
  static constexpr bool kRows = false;
  static constexpr bool kPieces = false;
  static constexpr bool kArrivesAfterPuts = false;
  static_assert(kSymmSignals <= kSymmBarrierRows,
                "verbena: each signal of a member out of reach needs a word");

  // NCCLX has the same device API as NCCL.
  VERBENA_DEVICE static constexpr bool serves(int32_t type) {
    return type == kSymmNccl || type == kSymmNcclx;
  }
  VERBENA_DEVICE static bool is_there(const Context& context) {
    return context.communicator != nullptr && context.communicator->ginContextCount != 0;
  }

  VERBENA_DEVICE static WaitResult put(const Context& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes, SymmQueue = {}) {
    put_with(context, peer, destination, source, length_bytes, ncclGin_None{});
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult put_signal(const Context& context, int32_t peer, void* destination,
                                              const void* source, uint64_t length_bytes, uint32_t number,
                                              uint64_t value, SymmSignalOperation operation, SymmQueue = {}) {
    if (operation == SymmSignalOperation::kAdd) {
      put_with(context, peer, destination, source, length_bytes, ncclGin_SignalAdd{number, value});
      return WaitResult::kReached;
    }
    put(context, peer, destination, source, length_bytes);
    return signal(context, peer, number, value, operation);
  }
  VERBENA_DEVICE static WaitResult signal(const Context& context, int32_t peer, uint32_t number,
                                          uint64_t value, SymmSignalOperation operation, SymmQueue = {}) {
    if (operation == SymmSignalOperation::kAdd) {
      add_signal(context, peer, number, value);
    } else {
      // Sends the value by a put, because putValue() fails in the proxy of NCCL 2.28. There is a separate
      // source word for each pair of a signal and a peer.
      uint64_t* const source = detail::find_arrivals(context, number) + peer;
      store_relaxed<Scope::kSystem>(source, value);
      put(context, peer, context.signals + number, source, sizeof(value));
    }
    return WaitResult::kReached;
  }

  // Does nothing, because all blocks use the same GIN context, in which a signal takes effect after all
  // earlier puts to the peer.
  VERBENA_DEVICE static WaitResult follow_all(const Context&, int32_t, SymmQueue) {
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult complete(const Context& context) { return release_sources(context); }
  VERBENA_DEVICE static WaitResult complete_at(const Context& context, int32_t) { return complete(context); }
  VERBENA_DEVICE static WaitResult release_sources(const Context& context) {
    if (is_there(context)) make_gin(context).flush(ncclCoopThread{});
    return WaitResult::kReached;
  }

  // Returns 0 for a signal of another rank, because a rank can read only its own GIN signals.
  VERBENA_DEVICE static uint64_t read_signal(const Context& context, uint32_t number, int64_t delta_bytes) {
    if (delta_bytes != 0 || !is_there(context)) return 0;
    return make_gin(context).readSignal(number) + context.remote_signals[number];
  }
  VERBENA_DEVICE static void reset_signal(const Context& context, uint32_t number) {
    if (is_there(context))
      context.remote_signals[number] = uint64_t{0} - make_gin(context).readSignal(number);
  }

  VERBENA_DEVICE static WaitResult arrive(const Context& context, int32_t peer, uint32_t barrier,
                                          uint64_t round) {
    add_signal(context, peer, kSymmSignals + SymmArrivalCount::find_word(barrier, round), 1);
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static bool has_arrived(const Context& context, int32_t, uint32_t barrier, uint64_t round) {
    const uint32_t number = kSymmSignals + SymmArrivalCount::find_word(barrier, round);
    return make_gin(context).readSignal(number) >= SymmArrivalCount::count_all(context, round);
  }
  // Does nothing, because GIN may wait forever if the peer has exited. The waits of members out of reach time
  // out on their own.
  VERBENA_DEVICE static void notify(const Context&, int32_t, uint64_t*, uint64_t) {}

 private:
  VERBENA_DEVICE static ncclGin make_gin(const Context& context) { return ncclGin(*context.communicator, 0); }
  VERBENA_DEVICE static int find_rank(const Context& context, int32_t peer) {
    return static_cast<int>(detail::get_world_rank(context, peer));
  }
  VERBENA_DEVICE static void add_signal(const Context& context, int32_t peer, uint32_t number,
                                        uint64_t value) {
    fence<Order::kAcquireRelease, Scope::kSystem>();
    make_gin(context).signal(ncclTeamWorld(*context.communicator), find_rank(context, peer),
                             ncclGin_SignalAdd{number, value});
  }
  template <typename Action>
  VERBENA_DEVICE static void put_with(const Context& context, int32_t peer, void* destination,
                                      const void* source, uint64_t length_bytes, Action action) {
    const Place to = find_place(context, destination), from = find_place(context, source);
    fence<Order::kAcquireRelease, Scope::kSystem>();
    make_gin(context).put(ncclTeamWorld(*context.communicator), find_rank(context, peer), to.window,
                          to.offset_bytes, from.window, from.offset_bytes, length_bytes, action);
  }
  struct Place {
    ncclWindow_t window;
    uint64_t offset_bytes;
  };
  VERBENA_DEVICE static Place find_place(const Context& context, const void* address) {
    const auto at = reinterpret_cast<uint64_t>(address);
    if (at >= context.buffer_begin && at < context.buffer_end)
      return {context.buffer, at - context.buffer_begin};
    return {context.window, detail::find_offset(context, address)};
  }
};

}  // namespace verbena::device

#endif
