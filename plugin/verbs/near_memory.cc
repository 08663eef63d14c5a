#include "verbs/near_memory.h"

#include <algorithm>
#include <new>

#include "verbs/device.h"
#include "verbs/library.h"

namespace verbena::verbs {
namespace {
constexpr std::align_val_t kAlignment{64};
}  // namespace

void NearMemoryDeleter::operator()(std::byte* memory) const {
  give_back != nullptr ? give_back(memory) : ::operator delete[](memory, kAlignment);
}

NearMemory take_near_memory(const Device& device, size_t length_bytes) {
  const Library& library = device.library();
  if (library.take_memory != nullptr && library.give_back_memory != nullptr) {
    if (void* const memory = library.take_memory(length_bytes); memory != nullptr)
      return {static_cast<std::byte*>(memory), {library.give_back_memory}};
  }
  auto* const memory = static_cast<std::byte*>(::operator new[](length_bytes, kAlignment));
  std::fill_n(memory, length_bytes, std::byte{});
  return {memory, {}};
}

}  // namespace verbena::verbs
