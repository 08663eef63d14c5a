// Making a context.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "device/symm/context.h"

namespace verbena::symm {
namespace {

using base::Outcome;
using base::Status;

// What ranks may not differ in.
struct Common {
  uint64_t heap_bytes;
  uint32_t teams;
  uint32_t path;
  uint32_t is_gpu;
  uint32_t queues;
  int32_t type;
  uint32_t is_world_only;
  uint64_t extension_bytes;

  bool operator==(const Common&) const = default;
};

}  // namespace

ContextSettings ContextSettings::from_parameters() {
  const base::Parameters& set = base::parameters();
  return {set.symm_path, static_cast<uint64_t>(set.symm_heap_bytes), static_cast<uint32_t>(set.symm_teams),
          static_cast<uint64_t>(set.symm_timeout_ms) * 1'000'000};
}

uint64_t ContextSettings::measure_words(uint32_t count_ranks) const {
  const uint64_t bytes = measure_team_words(count_ranks) * teams;
  return (bytes + kBorrowedUnitBytes - 1) / kBorrowedUnitBytes * kBorrowedUnitBytes;
}

base::Result<std::unique_ptr<Context>> Context::create(bootstrap::Bootstrap bootstrap,
                                                       const ContextSettings& settings,
                                                       std::optional<BorrowedHeap> borrowed) {
  std::unique_ptr<Context> context(
      new Context(std::move(bootstrap), settings, borrowed ? std::move(borrowed->lease) : HeapLease()));
  if (borrowed) {
    context->settings_.heap_bytes = borrowed->length_bytes;
    context->settings_.path = base::SymmPath::kAuto;
  }
  const BorrowedHeap* const heap = borrowed ? &*borrowed : nullptr;
  if (auto ready = context->prepare({base::find_current_gpu()}, heap); !ready) return ready.error();
  if (auto made = context->make_first_teams(); !made) return made.error();
  context->watch_.emplace(context->bootstrap_, context->calls_mutex_,
                          [raw = context.get()](const std::string& cause) { raw->note_loss(cause); });
  return context;
}

void Context::note_loss(const std::string& cause) {
  {
    const std::lock_guard lock(loss_mutex_);
    loss_ = cause;
  }
  abort_->raise(SymmAbort::kNetworkFailed);
}

std::string Context::error() const {
  const std::lock_guard lock(loss_mutex_);
  if (!loss_.empty()) return loss_;
  return remote_ ? remote_->error() : std::string();
}

Outcome Context::barrier() {
  const std::lock_guard call(calls_mutex_);
  return bootstrap_.barrier();
}

Outcome Context::leave() {
  watch_.reset();
  return barrier();
}

void Context::end_threads() {
  watch_.reset();
  if (remote_) remote_->stop();
}

Outcome Context::compare_settings(base::MemoryOwner owner, const HeapBackend& backend) {
  const Common mine{settings_.heap_bytes,
                    settings_.teams,
                    static_cast<uint32_t>(settings_.path),
                    owner.gpu != base::kNoGpu,
                    PutQueueShape::from_parameters().count,
                    backend.type,
                    backend.is_world_only,
                    backend.extension.size()};
  const auto all = bootstrap_.gather(mine);
  if (!all) return all.error();
  const auto other =
      std::find_if(all->begin(), all->end(), [&](const Common& one) { return one != all->front(); });
  if (other == all->end()) return {};
  return base::fail(
      Status::kInvalidUsage,
      "symm: ranks 0 and %zu differ in a GPU being current, VERBENA_SYMM_PATH, "
      "VERBENA_SYMM_HEAP_BYTES, VERBENA_SYMM_TEAMS or VERBENA_PUT_QUEUES, or in what their heaps are "
      "(types %d and %d, lengths %llu and %llu bytes, extensions %llu and %llu bytes)",
      static_cast<size_t>(other - all->begin()), all->front().type, other->type,
      static_cast<unsigned long long>(all->front().heap_bytes),
      static_cast<unsigned long long>(other->heap_bytes),
      static_cast<unsigned long long>(all->front().extension_bytes),
      static_cast<unsigned long long>(other->extension_bytes));
}

Outcome Context::prepare(base::MemoryOwner owner, const BorrowedHeap* borrowed) {
  if (auto same = compare_settings(owner, borrowed ? borrowed->backend : HeapBackend()); !same) return same;
  if (borrowed != nullptr) {
    const Outcome usable =
        borrowed->check(owner, rank(), count_ranks(), settings_.measure_words(count_ranks()));
    if (auto agreed = bootstrap_.all_agree(usable, base::last_failure()); !agreed) return agreed;
  }
  auto reach = borrowed ? Reach::from_deltas(bootstrap_, borrowed->deltas)
                        : Reach::find(bootstrap_, owner, settings_.path);
  if (!reach) return reach.error();
  reach_ = std::move(*reach);
  Outcome state;
  auto heap = borrowed ? base::Result<Heap>(Heap::borrow(owner, *borrowed))
                       : Heap::reserve(owner, settings_.heap_bytes, reach_->count_slots, reach_->own_slot);
  auto abort = AbortWord::create();
  if (!heap) state = heap.error();
  if (!abort) state = abort.error();
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed;
  heap_.emplace(std::move(*heap));
  abort_.emplace(std::move(*abort));
  // Whoever lends a heap has a way of his own to the others.
  if (reach_->is_whole_world() || borrowed != nullptr) return {};
  auto remote = Remote::open(bootstrap_, *reach_, owner.gpu, *abort_);
  if (!remote) return remote.error();
  remote_ = std::move(*remote);
  return {};
}

Outcome Context::make_first_teams() {
  const auto words = allocate_window(settings_.measure_words(count_ranks()));
  if (!words) return words.error();
  for (const uint32_t first : {uint32_t{0}, reach_->first_rank()}) {
    const auto made = form_team({.color = first}, {});
    if (!made) return made.error();
  }
  return {};
}

SymmContext Context::describe_common() const {
  SymmContext common{};
  common.type = heap_->backend().type;
  common.multicast_delta = heap_->backend().multicast_delta;
  common.rank = static_cast<int32_t>(rank());
  common.world_size = static_cast<int32_t>(count_ranks());
  common.heap_begin = reinterpret_cast<uint64_t>(heap_->begin());
  common.heap_end = common.heap_begin + heap_->slot_bytes();
  common.timeout_ns = settings_.timeout_ns;
  common.abort_word = abort_->device();
  if (remote_) common.queues = remote_->queues();
  return common;
}

base::Result<Team*> Context::form_team(Membership mine, std::span<const uint32_t> expected) {
  for (const auto& team : teams_) mine.taken |= uint64_t{1} << team->index();
  auto place = agree_on_team(bootstrap_, mine, settings_.teams, expected);
  if (!place) return place.error();
  std::unique_ptr<Team> team;
  Outcome state;
  if (*place) {
    auto built = build_team(std::move(**place));
    if (built) {
      team = std::move(*built);
    } else {
      state = built.error();
    }
  }
  // Nobody's words are written before everybody's are zero.
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed.error();
  if (!team) return static_cast<Team*>(nullptr);
  teams_.push_back(std::move(team));
  return teams_.back().get();
}

base::Result<std::unique_ptr<Team>> Context::build_team(TeamPlace place) {
  const auto& ranks = place.ranks;
  const bool is_world = teams_.empty();
  if (heap_->backend().is_world_only && !is_world &&
      !std::all_of(ranks.begin(), ranks.end(), [&](uint32_t member) { return reach_->reaches(member); })) {
    return base::fail(
        Status::kInvalidUsage,
        "symm: rank %u: a team of %zu ranks, some out of reach of loads and stores: the heap's network "
        "(type %d) serves the world alone",
        rank(), ranks.size(), heap_->backend().type);
  }
  const uint64_t words_bytes = measure_team_words(count_ranks());
  const uint64_t words = windows_.front()->place.heap_offset + words_bytes * place.index;
  if (auto cleared = heap_->fill_zero(words, words_bytes); !cleared) return cleared.error();
  return Team::make(std::move(place), *reach_, *heap_, words, describe_common());
}

base::Result<Team*> Context::split_team(const Team* parent, int64_t color, int64_t key) {
  const std::lock_guard call(calls_mutex_);
  if (auto current = check_gpu(); !current) return current.error();
  Membership mine{.color = parent == nullptr ? kNoColor : color, .key = key};
  // Teams share no ranks, or have different words: parents that differ, differ in this.
  if (parent != nullptr) mine.parent = int64_t{parent->ranks().front()} << 32 | parent->index();
  return form_team(mine, {});
}

base::Result<Team*> Context::make_team(std::span<const uint32_t> ranks) {
  const std::lock_guard call(calls_mutex_);
  if (auto current = check_gpu(); !current) return current.error();
  Membership mine{.parent = kNoColor};
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  if (own != ranks.end()) mine = {.parent = kNoColor, .color = ranks.front(), .key = own - ranks.begin()};
  return form_team(mine, ranks);
}

void Context::free_team(Team& team) {
  std::erase_if(teams_, [&](const auto& one) { return one.get() == &team; });
}

}  // namespace verbena::symm
