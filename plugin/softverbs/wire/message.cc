#include "softverbs/wire/message.h"

#include <algorithm>

#include "softverbs/engine/memory_region.h"
#include "softverbs/engine/queue_pair.h"
#include "softverbs/wire/gpu.h"

namespace verbena::softverbs::wire {

bool resolve(const Target& target, uint64_t offset, uint64_t bytes, Memory& memory) {
  memory.clear();
  Segment& segment = Process::get()->segment();
  const SharedQp& qp = segment.qp(target.qp_index);
  const ibv_qp_state state = get_state(qp);
  const bool is_alive =
      qp.life.get() == target.life && (state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD);
  if (!is_alive) return false;
  for (const SharedSge& piece : target.pieces) {
    if (bytes == 0) break;
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const uint64_t take = std::min(bytes, piece.length - offset);
    const Place place = translate(
        segment, {piece.address + offset, take, piece.lkey, target.pd, target.access, target.qp_number});
    if (place.address == 0) return false;
    memory.add(place.address, take, place.gpu, piece.lkey);
    bytes -= take;
    offset = 0;
  }
  return bytes == 0;
}

bool holds(const Memory& memory) {
  Segment& segment = Process::get()->segment();
  return std::all_of(memory.keys.begin(), memory.keys.end(), [&](uint32_t key) {
    return key == 0 || segment.mr(get_key_index(key)).key.load(std::memory_order_acquire) == key;
  });
}

void store_tail(Transfer& transfer, Loop& loop) {
  const uint32_t bytes = transfer.tail_bytes();
  if (bytes == 0 || transfer.error.load() != 0) return;
  Memory memory;
  const bool is_stored = resolve(transfer.target, transfer.bytes - bytes, bytes, memory) &&
                         store_memory(loop, memory, transfer.tail);
  if (!is_stored) transfer.error.store(kOperationError);
}

}  // namespace verbena::softverbs::wire
