#include "device/backends/shared_heap.h"

#include "device/backends/process_library.h"

namespace verbena::backends {
namespace {

int gather_for_context(void* heap, const void* mine, void* all, size_t bytes_each) {
  return guard([&] { static_cast<SharedHeap*>(heap)->gather(mine, all, bytes_each); });
}

}  // namespace

verbena_context* make_context(std::unique_ptr<SharedHeap> heap) {
  SharedHeap& held = *heap;
  verbena_heap described{};
  described.type = held.type_;
  described.begin = held.begin_;
  described.length_bytes = held.length_bytes_;
  described.reach_bytes = held.reach_bytes_;
  described.deltas = held.deltas_.data();
  described.aliases = held.aliases_.data();
  described.count_aliases = held.aliases_.size();
  described.extension = held.extension_.data();
  described.extension_bytes = held.extension_.size();
  described.is_world_only = held.is_world_only_ ? 1 : 0;
  described.release = [](void* argument) { delete static_cast<SharedHeap*>(argument); };
  described.argument = heap.release();
  verbena_context* context = nullptr;
  check(verbena_context_create_over_heap(&described, &gather_for_context, &held, held.rank(),
                                         held.count_ranks(), &context));
  return context;
}

}  // namespace verbena::backends
