// Windows of a context.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "device/symm/context.h"

namespace verbena::symm {

using base::Outcome;
using base::Status;

// What each rank asks for in a collective call about windows; it must be the same everywhere.
struct Context::Wish {
  enum class Kind : uint64_t { kAllocate, kRegister, kFree };
  Kind kind;
  uint64_t piece_bytes;
  uint64_t begin_bytes;   // from the piece's start to the window's
  uint64_t length_bytes;  // of the window
  uint64_t known;         // offset of a window that there is, or kNew
  static constexpr uint64_t kNew = UINT64_MAX;

  bool operator==(const Wish&) const = default;
};

Outcome Context::check_gpu() const {
  if (base::find_current_gpu() == gpu()) return {};
  return base::fail(Status::kInvalidUsage, "symm: rank %u: GPU %d is current, the context is GPU %d's",
                    rank(), base::find_current_gpu(), gpu());
}

Outcome Context::compare(const Wish& mine) {
  const auto all = bootstrap_.gather(mine);
  if (!all) return all.error();
  const auto other =
      std::find_if(all->begin(), all->end(), [&](const Wish& one) { return one != all->front(); });
  if (other == all->end()) return {};
  return base::fail(
      Status::kInvalidUsage,
      "symm: rank %u: ranks 0 and %zu differ in a window: its call, its length, what it is part of, or "
      "whether it is registered already (lengths %llu and %llu bytes)",
      rank(), static_cast<size_t>(other - all->begin()),
      static_cast<unsigned long long>(all->front().length_bytes),
      static_cast<unsigned long long>(other->length_bytes));
}

base::Result<ContextWindow*> Context::allocate_window(uint64_t length_bytes) {
  const std::lock_guard call(calls_mutex_);
  if (auto current = check_gpu(); !current) return current.error();
  const uint64_t unit = heap_->granularity_bytes();
  const uint64_t piece_bytes = (std::max<uint64_t>(length_bytes, 1) + unit - 1) / unit * unit;
  const Wish wish{Wish::Kind::kAllocate, piece_bytes, 0, length_bytes, Wish::kNew};
  if (auto same = compare(wish); !same) return same.error();
  auto window = std::make_unique<ContextWindow>();
  window->length_bytes = length_bytes;
  window->place.bytes = piece_bytes;
  auto piece = heap_->allocate(piece_bytes);
  const Outcome state = piece ? Outcome() : Outcome(piece.error());
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed.error();
  window->piece = std::move(*piece);
  return make_window(std::move(window));
}

base::Result<ContextWindow*> Context::register_window(void* address, uint64_t length_bytes) {
  const std::lock_guard call(calls_mutex_);
  if (heap_->is_borrowed()) {
    return base::fail(
        Status::kInvalidUsage,
        "symm: rank %u: windows of a context over another library's heap lie in that heap: memory is "
        "allocated there, not registered",
        rank());
  }
  if (auto current = check_gpu(); !current) return current.error();
  ContextWindow* const known = find_registered(address, length_bytes);
  auto window = std::make_unique<ContextWindow>();
  Wish wish{Wish::Kind::kRegister, 0, 0, length_bytes,
            known != nullptr ? known->place.heap_offset : Wish::kNew};
  Outcome state;
  if (known == nullptr) {
    if (auto found = base::find_piece(address)) {
      wish.piece_bytes = found->piece.length_bytes();
      wish.begin_bytes = static_cast<uint64_t>(static_cast<std::byte*>(address) - found->begin);
      if (length_bytes > wish.piece_bytes - wish.begin_bytes) {
        state = base::fail(Status::kInvalidArgument, "symm: %p: %llu bytes do not lie in one allocation",
                           address, static_cast<unsigned long long>(length_bytes));
      }
      window->piece = std::move(found->piece);
    } else {
      state = found.error();
    }
  }
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed.error();
  if (auto same = compare(wish); !same) return same.error();
  if (known != nullptr) {
    ++known->references;
    return known;
  }
  window->origin = address;
  window->length_bytes = length_bytes;
  window->place.bytes = wish.piece_bytes;
  const auto made = make_window(std::move(window));
  if (made) (*made)->address += wish.begin_bytes;
  return made;
}

base::Result<ContextWindow*> Context::make_window(std::unique_ptr<ContextWindow> window) {
  const uint64_t bytes = window->place.bytes;
  // The same on all ranks, as is the answer.
  const auto offset = windows_.size() < kMaxWindows ? heap_->offsets().take(bytes) : std::nullopt;
  if (!offset) {
    return base::fail(Status::kInvalidUsage,
                      "symm: no room for a window of %llu bytes (a heap of %llu%s, windows %zu of %u)",
                      static_cast<unsigned long long>(bytes),
                      static_cast<unsigned long long>(heap_->slot_bytes()),
                      heap_->is_borrowed() ? "" : ": VERBENA_SYMM_HEAP_BYTES", windows_.size(), kMaxWindows);
  }
  window->context = this;
  window->place = {*offset, bytes, find_free_region()};
  window->address = heap_->begin() + *offset;
  if (auto mapped = map_window(*window); !mapped) {
    window.reset();
    heap_->offsets().give_back(*offset);
    return mapped.error();
  }
  const std::lock_guard lock(windows_mutex_);
  windows_.push_back(std::move(window));
  return windows_.back().get();
}

Outcome Context::map_window(ContextWindow& window) {
  auto memory = WindowMemory::make(bootstrap_, *reach_, *heap_, window.place.heap_offset, window.piece);
  Outcome state = memory ? Outcome() : Outcome(memory.error());
  if (state) window.memory = std::move(*memory);
  // Registered memory keeps what is in it.
  if (state && window.origin == nullptr)
    state = heap_->fill_zero(window.place.heap_offset, window.place.bytes);
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed;
  if (!remote_) return {};
  return remote_->add_window(bootstrap_, *reach_, window.place, window.memory.own());
}

uint32_t Context::find_free_region() const {
  uint32_t region = 0;
  const auto has = [&](const auto& window) { return window->place.region == region; };
  while (std::any_of(windows_.begin(), windows_.end(), has)) ++region;
  return region;
}

ContextWindow* Context::find_registered(const void* address, uint64_t length_bytes) {
  const std::lock_guard lock(windows_mutex_);
  for (const auto& window : windows_) {
    if (window->origin == address && window->length_bytes == length_bytes) return window.get();
  }
  return nullptr;
}

Outcome Context::free_window(ContextWindow& window) {
  const std::lock_guard call(calls_mutex_);
  if (auto current = check_gpu(); !current) return current;
  // Also a barrier: what every rank has asked for before is done, or never will be.
  if (auto same = compare({Wish::Kind::kFree, 0, 0, window.length_bytes, window.place.heap_offset}); !same)
    return same;
  if (--window.references > 0) return {};
  if (remote_) remote_->remove_window(window.place);
  heap_->offsets().give_back(window.place.heap_offset);
  const std::lock_guard lock(windows_mutex_);
  std::erase_if(windows_, [&](const auto& one) { return one.get() == &window; });
  return {};
}

ContextWindow* Context::find_window(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  const std::lock_guard lock(windows_mutex_);
  for (const auto& window : windows_) {
    if (at >= window->address && at < window->address + window->length_bytes) return window.get();
    const auto* origin = static_cast<const std::byte*>(window->origin);
    if (origin != nullptr && at >= origin && at < origin + window->length_bytes) return window.get();
  }
  return nullptr;
}

std::byte* Context::find_peer(const ContextWindow& window, uint32_t rank) const {
  if (rank >= count_ranks() || !reach_->reaches(rank)) return nullptr;
  return window.address + heap_->delta_bytes(static_cast<uint32_t>(reach_->slot_of[rank]));
}

}  // namespace verbena::symm
