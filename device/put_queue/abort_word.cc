#include "device/put_queue/abort_word.h"

#include <utility>

namespace verbena::symm {

base::Result<AbortWord> AbortWord::create() {
  auto memory = base::Buffer::allocate(base::Place::kHost, sizeof(uint32_t));
  if (!memory) return memory.error();
  AbortWord word;
  word.memory_ = *std::move(memory);
  return word;
}

SymmAbort AbortWord::value() const {
  return static_cast<SymmAbort>(__atomic_load_n(word(), __ATOMIC_ACQUIRE));
}

bool AbortWord::raise(SymmAbort reason) {
  auto before = static_cast<uint32_t>(SymmAbort::kNone);
  return __atomic_compare_exchange_n(word(), &before, static_cast<uint32_t>(reason), false, __ATOMIC_RELEASE,
                                     __ATOMIC_RELAXED);
}

}  // namespace verbena::symm
