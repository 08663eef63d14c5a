#include "device/symm/team.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbena::symm {
namespace {

constexpr uint64_t kLineBytes = 128;  // a cache line of a GPU, which two teams must not share

// The layout of one team's words. All offsets are in words.
struct WordPlan {
  explicit WordPlan(uint64_t count_members) : rounds(arrivals + kSymmBarrierRows * count_members) {}

  static constexpr uint64_t signals = 0;
  static constexpr uint64_t remote_signals = signals + kSymmSignals;
  static constexpr uint64_t arrivals = remote_signals + kSymmSignals;
  uint64_t rounds;

  uint64_t failure() const { return rounds + kSymmBarrierRows; }
  uint64_t end() const { return failure() + 1; }
};

// The image must be aligned for 16-byte words in derived structures, even on the host.
static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= 16 && sizeof(SymmContext) % 16 == 0);

constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

template <typename T>
const T* behind(const void* begin, size_t offset_bytes) {
  return reinterpret_cast<const T*>(static_cast<const char*>(begin) + offset_bytes);
}

}  // namespace

uint64_t measure_team_words(uint32_t count_ranks) {
  return round_up(WordPlan(count_ranks).end() * sizeof(uint64_t), kLineBytes);
}

base::Result<std::unique_ptr<Team>> Team::make(TeamPlace place, TeamParts parts, const Reach& reach,
                                               const Heap& heap, const SymmContext& common) {
  std::unique_ptr<Team> team(new Team(std::move(place), std::move(parts)));
  SymmContext context = common;
  auto* const first = reinterpret_cast<uint64_t*>(heap.begin() + team->words());
  const WordPlan plan(team->ranks().size());
  context.signals = first + plan.signals;
  context.remote_signals = first + plan.remote_signals;
  context.arrivals = first + plan.arrivals;
  context.rounds = first + plan.rounds;
  context.failure = first + plan.failure();
  team->describe_members(context, reach, heap);
  std::vector<std::byte> extension = heap.backend().extension;
  extension.insert(extension.end(), team->parts_.behind.begin(), team->parts_.behind.end());
  if (auto written = team->write(context, extension); !written) return written.error();
  return team;
}

void Team::describe_members(SymmContext& context, const Reach& reach, const Heap& heap) {
  context.team_size = static_cast<int32_t>(ranks().size());
  context.team_rank = static_cast<int32_t>(rank());
  context.lsa_size = 0;
  context.lsa_mask = 0;
  for (size_t member = 0; member < ranks().size(); ++member) {
    const uint32_t rank = ranks()[member];
    const bool is_reached = reach.reaches(rank);
    deltas_.push_back(is_reached ? heap.delta_bytes(static_cast<uint32_t>(reach.slot_of[rank]))
                                 : kSymmOutOfReach);
    if (!is_reached) continue;
    if (context.lsa_size++ == 0) context.lsa_base_rank = static_cast<int32_t>(member);
    if (ranks().size() <= 64) context.lsa_mask |= uint64_t{1} << member;
  }
  context.has_remote = context.lsa_size < context.team_size;
  // The multicast address reaches all mapped ranks, even ranks that are not members.
  if (static_cast<uint32_t>(context.lsa_size) != reach.count_slots) context.multicast_delta = 0;
}

// Kernels wrote the value, so it is untrusted.
std::string Team::describe_failure(uint64_t failure) const {
  const auto number =
      static_cast<uint32_t>(failure >> kSymmFailureNumber) & ((uint32_t{1} << kSymmFailureNumberBits) - 1);
  const auto name = [&](uint32_t shift) {
    const auto member = static_cast<uint32_t>(failure >> shift) & kSymmNobody;
    return member < ranks().size() ? "rank " + std::to_string(ranks()[member]) : std::string("a peer");
  };
  const std::string peer = name(kSymmFailurePeer);
  std::string text = parts_.name + " of " + std::to_string(ranks().size()) + " ranks: ";
  if (is_refused_call(failure)) {
    return text + peer +
           " made an invalid call. Counts or offsets in the memory of its GPU exceed the tensors, or differ "
           "from the counts or offsets that its peers passed";
  }
  text += name(kSymmFailureRank) + " timed out waiting ";
  switch (static_cast<SymmWait>(failure & 0xff)) {
    case SymmWait::kBarrier:
      return text + "for " + peer + " in barrier " + std::to_string(number);
    case SymmWait::kLsaBarrier:
      return text + "for " + peer + " in barrier " + std::to_string(number) + " of the reachable ranks";
    case SymmWait::kSignal:
      return text + "for signal " + std::to_string(number);
    case SymmWait::kRequest:
      return text + "for the network to " + peer + " (its put queue is full, or a get has no answer)";
    case SymmWait::kCompletion:
      return text + "for the completion of its puts";
    case SymmWait::kWord:
      return text + "for a word of a window";
    case SymmWait::kPacket:
      return text + "for a packet of " + peer + " in block " + std::to_string(number);
    case SymmWait::kCall:
      break;
  }
  return text;
}

base::Outcome Team::write(SymmContext context, std::span<const std::byte> extension) {
  const std::span<const int64_t> deltas = deltas_;
  const std::vector<int32_t> world_ranks(ranks().begin(), ranks().end());
  const size_t deltas_at = round_up(sizeof(context) + extension.size(), alignof(int64_t));
  const size_t ranks_at = deltas_at + deltas.size_bytes();
  const size_t length_bytes = ranks_at + world_ranks.size() * sizeof(int32_t);
  auto memory = base::Buffer::allocate(base::Place::kDevice, length_bytes);
  if (!memory) return memory.error();
  memory_ = std::move(*memory);
  if (deltas.size() <= kSymmInlineDeltas) {
    std::copy(deltas.begin(), deltas.end(), context.inline_deltas);
    std::copy(world_ranks.begin(), world_ranks.end(), context.inline_world_ranks);
  } else {
    context.more_deltas = behind<int64_t>(memory_.device(), deltas_at);
    context.more_world_ranks = behind<int32_t>(memory_.device(), ranks_at);
  }
  image_.resize(length_bytes);
  std::memcpy(image_.data(), &context, sizeof(context));
  std::copy(extension.begin(), extension.end(), image_.begin() + sizeof(context));
  std::memcpy(image_.data() + deltas_at, deltas.data(), deltas.size_bytes());
  std::memcpy(image_.data() + ranks_at, world_ranks.data(), length_bytes - ranks_at);
  return base::write_buffer(memory_, 0, image_.data(), image_.size());
}

}  // namespace verbena::symm
