// A context's windows and workspaces. A workspace is a window that contains words and slots.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "device/symm/context.h"

namespace verbena::symm {

using base::Outcome;
using base::Status;

// A rank's arguments of a collective call that creates or frees windows. They must be equal on all ranks.
struct Context::WindowProposal {
  enum class Kind : uint64_t { kAllocate, kRegister, kFree, kReset };
  Kind kind;
  uint64_t piece_bytes;
  uint64_t begin_bytes;   // offset of the window's begin in the allocation
  uint64_t length_bytes;  // length of the window
  uint64_t known;         // offset of an existing window, or kNew
  static constexpr uint64_t kNew = UINT64_MAX;

  bool operator==(const WindowProposal&) const = default;
};

Outcome Context::check_gpu() const {
  if (base::find_current_gpu() == gpu()) return {};
  return base::fail(
      Status::kInvalidUsage,
      "symm: rank %u: GPU %d is current, but the context is on GPU %d. Call cudaSetDevice() first", rank(),
      base::find_current_gpu(), gpu());
}

Outcome Context::compare(const WindowProposal& mine) {
  const auto all = bootstrap_.gather(mine);
  if (!all) return all.error();
  const auto other =
      std::find_if(all->begin(), all->end(), [&](const WindowProposal& one) { return one != all->front(); });
  if (other == all->end()) return {};
  return base::fail(
      Status::kInvalidUsage,
      "symm: rank %u: ranks 0 and %zu make different window calls (lengths %llu and %llu bytes). All ranks "
      "must make the same call with the same length. Memory to be registered must have the same offset in "
      "its allocation on all ranks, and either all ranks or no rank must have registered this memory before",
      rank(), static_cast<size_t>(other - all->begin()),
      static_cast<unsigned long long>(all->front().length_bytes),
      static_cast<unsigned long long>(other->length_bytes));
}

base::Result<ContextWindow*> Context::allocate_window(uint64_t length_bytes) {
  const std::lock_guard call(calls_mutex_);
  if (auto current = check_gpu(); !current) return current.error();
  return take_window(length_bytes);
}

base::Result<ContextWindow*> Context::take_window(uint64_t length_bytes) {
  const uint64_t unit = heap_->granularity_bytes();
  const uint64_t piece_bytes = (std::max<uint64_t>(length_bytes, 1) + unit - 1) / unit * unit;
  const WindowProposal proposal{WindowProposal::Kind::kAllocate, piece_bytes, 0, length_bytes,
                                WindowProposal::kNew};
  if (auto same = compare(proposal); !same) return same.error();
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
    return base::fail(Status::kInvalidUsage,
                      "symm: rank %u: memory cannot be registered, because the context uses the heap of "
                      "another library. Allocate windows in that heap instead",
                      rank());
  }
  if (auto current = check_gpu(); !current) return current.error();
  ContextWindow* known = nullptr;
  auto window = std::make_unique<ContextWindow>();
  WindowProposal proposal{WindowProposal::Kind::kRegister, 0, 0, length_bytes, WindowProposal::kNew};
  Outcome state;
  if (auto found = base::find_piece(address)) {
    proposal.piece_bytes = found->piece.length_bytes();
    proposal.begin_bytes = static_cast<uint64_t>(static_cast<std::byte*>(address) - found->begin);
    if (length_bytes > proposal.piece_bytes - proposal.begin_bytes) {
      state = base::fail(Status::kInvalidArgument,
                         "symm: the range of %llu bytes at %p is not within one allocation",
                         static_cast<unsigned long long>(length_bytes), address);
    }
    known = find_registered(address, length_bytes, found->piece);
    window->piece = std::move(found->piece);
  } else {
    state = found.error();
  }
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed.error();
  if (auto same = compare(proposal); !same) return same.error();
  // If the allocator of any rank has replaced the memory, all ranks create a new window.
  const auto all_known =
      bootstrap_.gather(known != nullptr ? known->place.heap_offset : WindowProposal::kNew);
  if (!all_known) return all_known.error();
  const bool is_known =
      known != nullptr && std::all_of(all_known->begin(), all_known->end(),
                                      [&](uint64_t one) { return one == known->place.heap_offset; });
  if (is_known) {
    ++known->references;
    return known;
  }
  forget_origin(address, length_bytes, window->piece);
  window->origin = address;
  window->length_bytes = length_bytes;
  window->place.bytes = proposal.piece_bytes;
  const auto made = make_window(std::move(window));
  if (!made) return made;
  (*made)->address += proposal.begin_bytes;
  const Outcome known_to_kernels = add_alias(**made);
  if (auto agreed = bootstrap_.all_agree(known_to_kernels, base::last_failure()); !agreed) {
    drop_window(**made);
    return agreed.error();
  }
  return made;
}

Outcome Context::add_alias(ContextWindow& window) {
  const auto entry = aliases_->add(window.origin, window.length_bytes, window.address);
  if (!entry) return entry.error();
  window.alias = *entry;
  return {};
}

void Context::remove_alias(ContextWindow& window) {
  if (window.alias) aliases_->remove(*window.alias);
  window.alias.reset();
}

base::Result<ContextWindow*> Context::make_window(std::unique_ptr<ContextWindow> window) {
  const uint64_t bytes = window->place.bytes;
  // The arguments are the same on all ranks, so the result is the same, too.
  const auto offset = windows_.size() < kMaxWindows ? heap_->offsets().take(bytes) : std::nullopt;
  if (!offset) {
    return base::fail(Status::kInvalidUsage,
                      "symm: there is not enough free space for a window of %llu bytes (the heap has %llu "
                      "bytes%s; %zu of %u windows exist)",
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
  if (state && multicast_.is_there()) {
    auto bound = multicast_.bind(window.place.heap_offset, window.piece);
    if (bound) window.binding = std::move(*bound);
    if (!bound) state = bound.error();
  }
  // Registered memory keeps its content.
  if (state && window.origin == nullptr)
    state = heap_->fill_zero(window.place.heap_offset, window.place.bytes);
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed;
  if (!remote_) return {};
  return remote_->add_window(bootstrap_, window.place, window.memory.own());
}

uint32_t Context::find_free_region() const {
  uint32_t region = 0;
  const auto has = [&](const auto& window) { return window->place.region == region; };
  while (std::any_of(windows_.begin(), windows_.end(), has)) ++region;
  return region;
}

ContextWindow* Context::find_registered(const void* address, uint64_t length_bytes,
                                        const base::MemoryPiece& piece) {
  const std::lock_guard lock(windows_mutex_);
  for (const auto& window : windows_) {
    const bool is_it = window->origin == address && window->length_bytes == length_bytes;
    if (is_it && window->piece.is_same(piece)) return window.get();
  }
  return nullptr;
}

// Removes the origin of windows whose memory is no longer at its address, or that were registered for this
// range before.
void Context::forget_origin(const void* address, uint64_t length_bytes, const base::MemoryPiece& piece) {
  const auto* const begin = static_cast<const std::byte*>(address);
  const std::lock_guard lock(windows_mutex_);
  for (const auto& window : windows_) {
    const auto* const origin = static_cast<const std::byte*>(window->origin);
    if (origin == nullptr || origin >= begin + length_bytes || begin >= origin + window->length_bytes)
      continue;
    const bool is_this_range = origin == begin && window->length_bytes == length_bytes;
    if (!is_this_range && window->piece.is_same(piece)) continue;
    window->origin = nullptr;
    remove_alias(*window);
  }
}

Outcome Context::free_window(ContextWindow& window) {
  const std::lock_guard call(calls_mutex_);
  if (auto current = check_gpu(); !current) return current;
  if (auto same = compare({WindowProposal::Kind::kFree, 0, 0, window.length_bytes, window.place.heap_offset});
      !same)
    return same;
  if (window.references > 1) {
    --window.references;
    return {};
  }
  if (auto quiet = quiet_all(); !quiet) return quiet;
  drop_window(window);
  return {};
}

void Context::drop_window(ContextWindow& window) {
  remove_alias(window);
  if (remote_) remote_->remove_window(window.place);
  heap_->offsets().give_back(window.place.heap_offset);
  const std::lock_guard lock(windows_mutex_);
  std::erase_if(windows_, [&](const auto& one) { return one.get() == &window; });
}

// Returns the length of the workspace's window. It is the same on all ranks, although teams that create
// workspaces in one call may differ in size.
base::Result<uint64_t> Context::measure_workspace(const Team* team, const WorkspaceShape& shape) {
  struct Asked {
    uint64_t slots_bytes, blocks, members;
  };
  const auto all = bootstrap_.gather(
      Asked{shape.slots_bytes, shape.blocks, team == nullptr ? uint64_t{0} : team->ranks().size()});
  if (!all) return all.error();
  uint64_t most = 1;
  for (size_t other = 0; other < all->size(); ++other) {
    const Asked& asked = (*all)[other];
    most = std::max(most, asked.members);
    if (asked.slots_bytes == all->front().slots_bytes && asked.blocks == all->front().blocks) continue;
    return base::fail(Status::kInvalidUsage,
                      "symm: rank %u: ranks 0 and %zu create different workspaces (%llu and %llu bytes of "
                      "slots, %llu and %llu blocks)",
                      rank(), other, static_cast<unsigned long long>(all->front().slots_bytes),
                      static_cast<unsigned long long>(asked.slots_bytes),
                      static_cast<unsigned long long>(all->front().blocks),
                      static_cast<unsigned long long>(asked.blocks));
  }
  if (shape.blocks == 0 || shape.blocks > kSymmMaxBlocks) {
    return base::fail(Status::kInvalidArgument,
                      "symm: a workspace cannot have %u blocks. The number of blocks must be from 1 to %u",
                      shape.blocks, kSymmMaxBlocks);
  }
  // Larger values could not be allocated, and adding the size of the words could overflow.
  const uint64_t least = uint64_t{shape.blocks} * kSymmTurns * most * kSymmSlotUnit;
  if (shape.slots_bytes > heap_->slot_bytes() || (shape.slots_bytes != 0 && shape.slot_bytes(most) == 0)) {
    return base::fail(Status::kInvalidArgument,
                      "symm: a workspace cannot have %llu bytes of slots. With %u blocks and a team of %llu "
                      "ranks, the minimum is %llu bytes; the maximum is the size of the heap, %llu bytes",
                      static_cast<unsigned long long>(shape.slots_bytes), shape.blocks,
                      static_cast<unsigned long long>(most), static_cast<unsigned long long>(least),
                      static_cast<unsigned long long>(heap_->slot_bytes()));
  }
  return shape.measure(most);
}

base::Result<std::unique_ptr<Team>> Context::build_workspace(const Team& team, const WorkspaceShape& shape,
                                                             const ContextWindow& window) const {
  if (heap_->backend().is_world_only && team.context().has_remote != 0) {
    return base::fail(
        Status::kInvalidUsage,
        "symm: rank %u: cannot create a workspace for this team, because the memory of some members is not "
        "mapped, and the network of the heap's library (type %d) supports only the world team",
        rank(), heap_->backend().type);
  }
  const std::string name = "workspace " + std::to_string(window.place.region) + " for " + team.name();
  // Blocks of different streams with the same index must not share a put queue.
  SymmContext common = describe_common();
  common.first_queue = window.place.region;
  return make_workspace_team(team.place(), shape, name, *reach_, *heap_, window.place.heap_offset, common);
}

base::Result<Workspace*> Context::make_workspace(const Team* team, const WorkspaceShape& shape) {
  const std::lock_guard call(calls_mutex_);
  if (auto current = check_gpu(); !current) return current.error();
  const auto length_bytes = measure_workspace(team, shape);
  if (!length_bytes) return length_bytes.error();
  if (auto same = compare_team(team); !same) return same.error();
  const auto window = take_window(*length_bytes);
  if (!window) return window.error();
  auto workspace = std::make_unique<Workspace>();
  workspace->context = this;
  workspace->window = *window;
  workspace->shape = shape;
  Outcome state;
  if (team != nullptr) {
    auto built = build_workspace(*team, shape, **window);
    if (built) {
      workspace->team = std::move(*built);
    } else {
      state = built.error();
    }
  }
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) {
    drop_window(**window);
    return agreed.error();
  }
  const std::lock_guard lock(teams_mutex_);
  workspaces_.push_back(std::move(workspace));
  return workspaces_.back().get();
}

Outcome Context::reset_workspace(Workspace& workspace) {
  const std::lock_guard call(calls_mutex_);
  if (auto current = check_gpu(); !current) return current;
  const Window& place = workspace.window->place;
  if (auto same = compare({WindowProposal::Kind::kReset, 0, 0, place.bytes, place.heap_offset}); !same)
    return same;
  Outcome state = check_reset(workspace.team.get());
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed;
  if (auto quiet = quiet_all(); !quiet) return quiet;
  // The words are cleared between two collective calls, so that no late signal can change the cleared words,
  // and no rank continues before all words are cleared.
  state = heap_->fill_zero(place.heap_offset, place.bytes);
  return bootstrap_.all_agree(state, base::last_failure());
}

Outcome Context::free_workspace(Workspace& workspace) {
  if (auto freed = free_window(*workspace.window); !freed) return freed;
  const std::lock_guard lock(teams_mutex_);
  std::erase_if(workspaces_, [&](const auto& one) { return one.get() == &workspace; });
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
