#include "device/symm/alias_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/log.h"

namespace verbena::symm {

base::Result<AliasTable> AliasTable::create() {
  auto memory = base::Buffer::allocate(base::Place::kDevice, sizeof(SymmAliases));
  if (!memory) return memory.error();
  AliasTable table;
  table.memory_ = std::move(*memory);
  return table;
}

base::Result<uint32_t> AliasTable::add(const void* begin, uint64_t length_bytes, const void* symmetric) {
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  const auto entry = static_cast<uint32_t>(free - taken_.begin());
  if (entry >= kSymmMaxAliases)
    return base::fail(base::Status::kInvalidUsage, "symm: more than %u registrations", kSymmMaxAliases);
  const auto first = reinterpret_cast<uint64_t>(begin);
  const SymmAlias alias{
      .begin = first, .end = first + length_bytes, .delta = reinterpret_cast<uint64_t>(symmetric) - first};
  const size_t at = offsetof(SymmAliases, entries) + entry * sizeof(SymmAlias);
  // What makes an entry count is written last.
  const SymmAlias unfinished{.begin = alias.begin, .end = 0, .delta = alias.delta};
  const uint64_t count = std::max<uint64_t>(taken_.size(), entry + 1);
  base::Outcome written = base::write_buffer(memory_, at, &unfinished, sizeof(unfinished));
  if (written)
    written = base::write_buffer(memory_, at + offsetof(SymmAlias, end), &alias.end, sizeof(alias.end));
  if (written) written = base::write_buffer(memory_, offsetof(SymmAliases, count), &count, sizeof(count));
  if (!written) return written.error();
  if (entry == taken_.size()) taken_.push_back(true);
  taken_[entry] = true;
  return entry;
}

void AliasTable::remove(uint32_t entry) {
  constexpr uint64_t kNone = 0;
  const size_t at = offsetof(SymmAliases, entries) + entry * sizeof(SymmAlias);
  // If the GPU cannot be written to, no kernel runs there any more.
  if (base::write_buffer(memory_, at + offsetof(SymmAlias, end), &kNone, sizeof(kNone)))
    taken_[entry] = false;
}

}  // namespace verbena::symm
