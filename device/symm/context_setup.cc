// Creates and destroys contexts and teams.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "device/symm/context.h"
#include "device/symm/stream.h"

namespace verbena::symm {
namespace {

using base::Outcome;
using base::Status;

// The settings that must be equal on all ranks.
struct Common {
  uint64_t heap_bytes;
  uint32_t teams;
  uint32_t path;
  uint32_t is_gpu;
  uint32_t queues;
  uint32_t multicast;
  int32_t type;
  uint32_t is_world_only;
  uint64_t extension_bytes;

  bool operator==(const Common&) const = default;
};

}  // namespace

ContextSettings ContextSettings::from_parameters() {
  const base::Parameters& set = base::parameters();
  return {set.symm_path, static_cast<uint64_t>(set.symm_heap_bytes), static_cast<uint32_t>(set.symm_teams),
          static_cast<uint64_t>(set.symm_timeout_ms) * 1'000'000, set.symm_multicast};
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
    context->settings_.multicast = false;  // the other library provides the multicast address
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

Outcome Context::enqueue(const Team& team, const StreamCall& call, void* stream) const {
  if (auto current = check_gpu(); !current) return current;
  StreamCall given = call;
  given.destination = aliases_->find(call.destination);
  given.source = aliases_->find(call.source);
  return enqueue_calls(team, {&given, 1}, stream);
}

Outcome Context::enqueue_pieces(const Team& team, std::span<const SymmPiece> pieces, uint32_t peer,
                                void* stream) const {
  if (auto current = check_gpu(); !current) return current;
  std::vector<StreamCall> calls;
  for (const SymmPiece& piece : pieces) {
    if (calls.empty() || calls.back().value == kStreamPieces)
      calls.push_back({.kind = StreamCall::Kind::kPutPieces, .peer = static_cast<int32_t>(peer)});
    SymmPiece& given = calls.back().pieces[calls.back().value++];
    given = {reinterpret_cast<void*>(aliases_->find(reinterpret_cast<uint64_t>(piece.destination))),
             reinterpret_cast<const void*>(aliases_->find(reinterpret_cast<uint64_t>(piece.source))),
             piece.length_bytes};
  }
  return enqueue_calls(team, calls, stream);
}

Outcome Context::barrier() {
  const std::lock_guard call(calls_mutex_);
  return bootstrap_.barrier();
}

Outcome Context::gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  const std::lock_guard call(calls_mutex_);
  return bootstrap_.all_gather(mine, all);
}

Outcome Context::agree(const Outcome& mine) {
  const std::lock_guard call(calls_mutex_);
  return bootstrap_.all_agree(mine, base::last_failure());
}

Outcome Context::compare_history(const char* what, uint64_t count, uint64_t history) {
  struct History {
    uint64_t count, history;
  };
  const std::lock_guard call(calls_mutex_);
  const auto all = bootstrap_.gather(History{count, history});
  if (!all) return all.error();
  for (size_t other = 1; other < all->size(); ++other) {
    const History &one = (*all)[other], &first = all->front();
    if (one.count == first.count && one.history == first.history) continue;
    return base::fail(Status::kInvalidUsage,
                      "symm: rank %u: ranks 0 and %zu have used %s differently (%llu and %llu calls). All "
                      "ranks must allocate and free the same lengths in the same order",
                      rank(), other, what, static_cast<unsigned long long>(first.count),
                      static_cast<unsigned long long>(one.count));
  }
  return {};
}

Outcome Context::quiet() {
  if (remote_) return remote_->quiet();
  if (!heap_->is_borrowed() || reach_->is_whole_world()) return {};
  return base::fail(Status::kInvalidUsage,
                    "symm: rank %u: cannot wait for operations to ranks whose memory is not mapped, because "
                    "these operations use the network of the heap's library (type %d). Call the quiet "
                    "function of that library instead",
                    rank(), heap_->backend().type);
}

// Afterwards, no requests of finished kernels are outstanding between ranks. In a failed context, no request
// completes anymore, so the call does not wait.
Outcome Context::quiet_all() {
  if (!remote_) return {};
  const bool is_over = remote_->has_stopped() || state() != SymmAbort::kNone;
  const Outcome quiet = is_over ? Outcome() : remote_->quiet();
  return bootstrap_.all_agree(quiet, base::last_failure());
}

// After this call the peers may free their memory.
Outcome Context::leave() {
  watch_.reset();
  const std::lock_guard call(calls_mutex_);
  if (auto quiet = quiet_all(); !quiet) return quiet;
  return bootstrap_.barrier();
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
                    settings_.multicast,
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
      "symm: ranks 0 and %zu have different settings or heaps (heap types %d and %d, lengths %llu and %llu "
      "bytes, extensions of %llu and %llu bytes). The heaps must be the same on all ranks, and so must "
      "VERBENA_SYMM_PATH, VERBENA_SYMM_HEAP_BYTES, VERBENA_SYMM_TEAMS, VERBENA_SYMM_MULTICAST and "
      "VERBENA_PUT_QUEUES. Either all ranks or no rank must have a current GPU",
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
  auto unit_bytes = settings_.multicast ? agree_on_multicast(bootstrap_, *reach_, owner)
                                        : base::Result<uint64_t>(uint64_t{0});
  if (!unit_bytes) return unit_bytes.error();
  Outcome state;
  auto heap = borrowed ? base::Result<Heap>(Heap::borrow(owner, *borrowed))
                       : Heap::reserve(owner, settings_.heap_bytes, reach_->count_slots, reach_->own_slot,
                                       *unit_bytes);
  auto abort = AbortWord::create();
  auto aliases = AliasTable::create();
  if (!heap) state = heap.error();
  if (!abort) state = abort.error();
  if (!aliases) state = aliases.error();
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed;
  heap_.emplace(std::move(*heap));
  abort_.emplace(std::move(*abort));
  aliases_.emplace(std::move(*aliases));
  for (size_t i = 0; borrowed != nullptr && i < borrowed->aliases.size() && state.is_ok(); ++i) {
    const BorrowedHeap::Alias& alias = borrowed->aliases[i];
    if (auto added = aliases_->add(alias.begin, alias.length_bytes, alias.symmetric); !added)
      state = added.error();
  }
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed;
  if (*unit_bytes != 0) {
    auto multicast = Multicast::make(bootstrap_, *reach_, owner, heap_->slot_bytes(), *unit_bytes);
    if (!multicast) return multicast.error();
    multicast_ = std::move(*multicast);
  }
  // A borrowed heap comes with its own network.
  if (reach_->is_whole_world() || borrowed != nullptr) return {};
  auto remote = Remote::open(bootstrap_, owner.gpu, *abort_);
  if (!remote) return remote.error();
  remote_ = std::move(*remote);
  return check_write_order(owner);
}

// A GPU that sees a signal written by a NIC must also see the data that the NIC wrote before.
Outcome Context::check_write_order(base::MemoryOwner owner) {
  const auto mine =
      owner.gpu == base::kNoGpu ? base::NicWriteOrder::kAllGpus : base::find_nic_write_order(owner.gpu);
  const auto all = bootstrap_.gather(mine);
  if (!all) return all.error();
  const auto least = std::min_element(all->begin(), all->end());
  meets_twice_ = *least < base::NicWriteOrder::kAllGpus;
  if (*least >= base::NicWriteOrder::kThisGpu) return {};
  return base::fail(Status::kInvalidUsage,
                    "symm: the GPU of rank %zu may see a NIC's signal before the data that the signal "
                    "announces (the driver reports GPU_DIRECT_RDMA_WRITES_ORDERING none), so RDMA cannot be "
                    "used. Set VERBENA_SYMM_PATH=lsa if the GPUs of all ranks can access each other",
                    static_cast<size_t>(least - all->begin()));
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
  common.multicast_delta =
      heap_->is_borrowed() ? heap_->backend().multicast_delta : multicast_.delta_from(heap_->begin());
  common.rank = static_cast<int32_t>(rank());
  common.world_size = static_cast<int32_t>(count_ranks());
  common.heap_begin = reinterpret_cast<uint64_t>(heap_->begin());
  common.heap_end = common.heap_begin + heap_->reach_bytes();
  common.timeout_ns = settings_.timeout_ns;
  common.abort_word = abort_->device();
  common.meets_twice = meets_twice_;
  common.aliases = aliases_->device();
  if (remote_) common.queues = remote_->queues();
  return common;
}

Team& Context::first_team(size_t index) {
  const std::lock_guard lock(teams_mutex_);
  return *teams_[index];
}

// Bit i is set if a team of this rank uses the i-th words.
uint64_t Context::find_taken_words() const {
  const std::lock_guard lock(teams_mutex_);
  uint64_t taken = 0;
  for (const auto& team : teams_) taken |= uint64_t{1} << team->index();
  return taken;
}

base::Result<Team*> Context::form_team(Membership mine, std::span<const uint32_t> expected) {
  // Without this, a late signal could change the words of a new team.
  if (auto quiet = quiet_all(); !quiet) return quiet.error();
  mine.taken = find_taken_words();
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
  // No rank may write words before the words on all ranks are zero.
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed.error();
  if (!team) return static_cast<Team*>(nullptr);
  const std::lock_guard lock(teams_mutex_);
  teams_.push_back(std::move(team));
  return teams_.back().get();
}

base::Result<std::unique_ptr<Team>> Context::build_team(TeamPlace place) {
  const auto& ranks = place.ranks;
  const bool is_world = find_taken_words() == 0;
  if (heap_->backend().is_world_only && !is_world &&
      !std::all_of(ranks.begin(), ranks.end(), [&](uint32_t member) { return reach_->reaches(member); })) {
    return base::fail(
        Status::kInvalidUsage,
        "symm: rank %u: cannot create a team of %zu ranks, because the memory of some members is not mapped, "
        "and the network of the heap's library (type %d) supports only the world team",
        rank(), ranks.size(), heap_->backend().type);
  }
  const uint64_t words_bytes = measure_team_words(count_ranks());
  const uint64_t words = windows_.front()->place.heap_offset + words_bytes * place.index;
  if (auto cleared = heap_->fill_zero(words, words_bytes); !cleared) return cleared.error();
  const std::string name = "team " + std::to_string(place.index);
  return Team::make(std::move(place), {.name = name, .words = words, .behind = {}}, *reach_, *heap_,
                    describe_common());
}

base::Result<Team*> Context::split_team(const Team* parent, int64_t color, int64_t key) {
  const std::lock_guard call(calls_mutex_);
  if (auto current = check_gpu(); !current) return current.error();
  Membership mine{.color = parent == nullptr ? kNoColor : color, .key = key};
  // Two different parents have different first ranks or different words, so these two values identify a
  // parent.
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

// Checks this rank's arguments. Either all members reset the team, or no member does.
Outcome Context::check_reset(const Team* team) const {
  if (state() != SymmAbort::kNone) {
    return base::fail(
        Status::kInvalidUsage,
        "symm: rank %u: the context has failed, so its teams cannot be reset. Create a new context", rank());
  }
  if (team != nullptr && heap_->backend().is_world_only && team->context().has_remote != 0) {
    return base::fail(
        Status::kInvalidUsage,
        "symm: rank %u: cannot reset the team, because the memory of some members is not mapped, and the "
        "network of the heap's library (type %d) keeps its own barrier counts. Create a new context",
        rank(), heap_->backend().type);
  }
  return {};
}

// If a rank passes a team, exactly the members of that team must pass it.
Outcome Context::compare_team(const Team* team) {
  constexpr uint64_t kNone = UINT64_MAX;
  const auto all =
      bootstrap_.gather(team == nullptr ? kNone : uint64_t{team->ranks().front()} << 32 | team->index());
  if (!all) return all.error();
  Outcome state;
  for (uint32_t member = 0; team != nullptr && member < count_ranks() && state.is_ok(); ++member) {
    const auto& ranks = team->ranks();
    const bool is_member = std::find(ranks.begin(), ranks.end(), member) != ranks.end();
    if (is_member == ((*all)[member] == (*all)[rank()])) continue;
    state = base::fail(Status::kInvalidUsage,
                       "symm: rank %u: rank %u %s of the team that this rank passed, but rank %u passed a "
                       "different list of ranks",
                       rank(), member, is_member ? "is a member" : "is not a member", member);
  }
  return bootstrap_.all_agree(state, base::last_failure());
}

Outcome Context::reset_team(Team* team) {
  const std::lock_guard call(calls_mutex_);
  if (auto current = check_gpu(); !current) return current;
  Outcome state = check_reset(team);
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed;
  if (auto same = compare_team(team); !same) return same;
  if (auto quiet = quiet_all(); !quiet) return quiet;
  // The words are cleared after a collective call, so that no late signal can change the cleared words.
  if (team != nullptr) state = heap_->fill_zero(team->words(), measure_team_words(count_ranks()));
  return bootstrap_.all_agree(state, base::last_failure());
}

base::Result<TeamFailure> Context::find_failure(const Team& team) const {
  const auto failure = heap_->read_word(team.context().failure);
  if (!failure) return failure.error();
  if (*failure == 0) return TeamFailure{};
  return TeamFailure{is_refused_call(*failure) ? Status::kInvalidArgument : Status::kTimeout,
                     team.describe_failure(*failure)};
}

base::Result<TeamFailure> Context::find_failures() const {
  const std::lock_guard lock(teams_mutex_);
  std::vector<const Team*> all;
  all.reserve(teams_.size() + workspaces_.size());
  for (const auto& team : teams_) all.push_back(team.get());
  for (const auto& workspace : workspaces_)
    if (workspace->team != nullptr) all.push_back(workspace->team.get());
  TeamFailure failures;
  for (const Team* team : all) {
    const auto one = find_failure(*team);
    if (!one) return one.error();
    if (one->status == Status::kOk) continue;
    if (failures.status == Status::kOk) failures.status = one->status;
    failures.text += (failures.text.empty() ? "" : "; ") + one->text;
  }
  return failures;
}

void Context::free_team(const Team& team) {
  const std::lock_guard lock(teams_mutex_);
  std::erase_if(teams_, [&](const auto& one) { return one.get() == &team; });
}

}  // namespace verbena::symm
