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
  const std::lock_guard lock(*mutex_);
  const auto free =
      std::find_if(entries_.begin(), entries_.end(), [](const SymmAlias& one) { return one.end == 0; });
  const auto entry = static_cast<uint32_t>(free - entries_.begin());
  if (entry >= kSymmMaxAliases)
    return base::fail(
        base::Status::kInvalidUsage,
        "symm: too many windows are registered (the maximum is %u). Free a registered window first",
        kSymmMaxAliases);
  const auto first = reinterpret_cast<uint64_t>(begin);
  const SymmAlias alias{
      .begin = first, .end = first + length_bytes, .delta = reinterpret_cast<uint64_t>(symmetric) - first};
  const size_t at = offsetof(SymmAliases, entries) + entry * sizeof(SymmAlias);
  // The member that makes the entry valid is written last.
  const SymmAlias unfinished{.begin = alias.begin, .end = 0, .delta = alias.delta};
  const uint64_t count = std::max<uint64_t>(entries_.size(), entry + 1);
  base::Outcome written = base::write_buffer(memory_, at, &unfinished, sizeof(unfinished));
  if (written)
    written = base::write_buffer(memory_, at + offsetof(SymmAlias, end), &alias.end, sizeof(alias.end));
  if (written) written = base::write_buffer(memory_, offsetof(SymmAliases, count), &count, sizeof(count));
  if (!written) return written.error();
  if (entry == entries_.size()) entries_.emplace_back();
  entries_[entry] = alias;
  return entry;
}

void AliasTable::remove(uint32_t entry) {
  constexpr uint64_t kNone = 0;
  const size_t at = offsetof(SymmAliases, entries) + entry * sizeof(SymmAlias);
  const std::lock_guard lock(*mutex_);
  // A failed write is ignored, because if the GPU's memory cannot be written, no kernel runs on the GPU
  // anymore.
  if (base::write_buffer(memory_, at + offsetof(SymmAlias, end), &kNone, sizeof(kNone)))
    entries_[entry].end = 0;
}

uint64_t AliasTable::find(uint64_t address) const {
  const std::lock_guard lock(*mutex_);
  for (const SymmAlias& one : entries_)
    if (address >= one.begin && address < one.end) return address + one.delta;
  return address;
}

}  // namespace verbena::symm
