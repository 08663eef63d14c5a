// A put that sends bfloat16 elements to a peer in encoded form, without loss (codec_lossless.cuh). A NIC
// carries about 12 bits per element. The receiver decodes the elements and gets the same bits. All threads of
// a group of whole warps (a warp, a block, warps of a block, a grid) make the same call.
//
//   sender      symm_put_encoded_signal_async(context, slot, staging, source, elements, peer, signal, 1, ...)
//               symm_flush(context, group);  // before the staging buffer is reused
//   receiver    symm_signal_wait_until(context, signal, ...);
//               symm_decode(destination, slot, elements, group);
//
// The encoded message is written to a slot, because the receiver may run no kernel when the message arrives.
// The receiver waits for the signal and then decodes the message in the slot. An encoded put is faster than a
// plain put only if the network is slow. At a compression ratio of 1.33, the elements must be encoded and
// then decoded more than four times as fast as the network would carry them unencoded (docs/limits.md). If
// loads and stores reach the peer, an encoded put is never faster.
#ifndef VERBENA_DEVICE_COLLECTIVES_ENCODED_PUT_CUH
#define VERBENA_DEVICE_COLLECTIVES_ENCODED_PUT_CUH

#include "verbena/device/collectives/codec_lossless.cuh"
#include "verbena/device/symm_put.cuh"

namespace verbena::device {

inline constexpr uint32_t kSymmMaxEncodedElements = 1u << 30;

// Returns the size in bytes that a slot, and a staging buffer, must have for a number of elements.
VERBENA_HOST_DEVICE constexpr uint64_t symm_encoded_bytes(uint32_t elements) {
  return LosslessTiles<sizeof(Bfloat16)>::max_bytes(elements);
}

// Encodes elements into `staging`, puts the message into the peer's slot, then signals the peer. Once the
// peer has waited for the signal, it may call symm_decode().
// @param slot      address in a window of this rank, aligned to 16 bytes, with symm_encoded_bytes(elements)
//                  bytes. The call writes to the same offset in the peer's memory; the peer must not use this
//                  memory until the signal arrives
// @param staging   memory of this rank with the same size and alignment as the slot; must lie in a window if
//                  loads and stores do not reach the peer. May be reused after symm_flush(), like the source
//                  of a put
// @param source    `elements` elements in any memory of this GPU, with any alignment; may be reused once the
//                  call has returned in all threads of the group
// @param elements  number of elements, at most kSymmMaxEncodedElements; the receiver must pass the same
//                  number
// @return kInvalid if `peer`, `signal` or an address is invalid; then nothing is sent
template <typename Context, typename Group>
VERBENA_DEVICE SymmStatus symm_put_encoded_signal_async(
    const Context& context, void* slot, void* staging, const void* source, uint32_t elements, int32_t peer,
    uint32_t signal, uint64_t value, SymmSignalOperation operation = SymmSignalOperation::kAdd,
    const Group& group = {}, SymmQueue queue = {}) {
  const uint64_t room = symm_encoded_bytes(elements);
  const uint64_t bits = reinterpret_cast<uint64_t>(slot) | reinterpret_cast<uint64_t>(staging);
  void *at_peer = slot, *here = staging;
  const bool is_right =
      elements <= kSymmMaxEncodedElements && bits % kVectorBytes == 0 &&
      detail::is_signal(context, signal, peer, operation) &&
      detail::is_at_peer(context, &at_peer, room, peer) &&
      (detail::get_delta(context, peer) != kSymmOutOfReach || detail::find_symmetric(context, &here, room));
  if (!is_right) return SymmStatus::kInvalid;
  const LosslessTiles<sizeof(Bfloat16)> message(static_cast<char*>(staging), elements);
  message.begin(group);
  group.sync();
  for (uint32_t tile = group.rank() / kWarpLanes; tile < message.tiles(); tile += group.size() / kWarpLanes) {
    TileWords words;
    load_tile_words<sizeof(Bfloat16)>(static_cast<const char*>(source), tile,
                                      elements * static_cast<uint32_t>(sizeof(Bfloat16)), words);
    message.store(tile, words);
  }
  group.sync();
  const uint64_t length = elements == 0 ? 0 : message.length_bytes();
  return symm_put_signal_async(context, slot, staging, length, peer, signal, value, operation, group, queue);
}

// Decodes a message that has arrived in this rank's slot. When the call returns, all threads of the group see
// the elements, and the slot may be used again. The call does not trust the message. If the message is
// invalid, the elements have arbitrary values, but the call reads nothing outside the slot.
// @param destination  receives `elements` elements; any memory of this GPU, with any alignment
// @param slot         this rank's address of the slot that the sender passed
// @param elements     number of elements, the same as at the sender
template <typename Group>
VERBENA_DEVICE void symm_decode(void* destination, const void* slot, uint32_t elements,
                                const Group& group = {}) {
  const LosslessTiles<sizeof(Bfloat16), const char> message(static_cast<const char*>(slot), elements);
  for (uint32_t tile = group.rank() / kWarpLanes; tile < message.tiles(); tile += group.size() / kWarpLanes) {
    TileWords words;
    message.load(tile, words);
    store_tile_words<sizeof(Bfloat16)>(static_cast<char*>(destination), tile,
                                       elements * static_cast<uint32_t>(sizeof(Bfloat16)), words);
  }
  group.sync();
}

}  // namespace verbena::device

#endif
