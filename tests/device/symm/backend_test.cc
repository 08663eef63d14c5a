// A second backend beside ours: what it has to bring, and that the functions with C names choose by type.
#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "device/symm/fleet.h"
#include "device/symm/stub_backend.cuh"

#define VERBENA_SYMM_CONTEXTS verbena::SymmContext, verbena::StubSymmContext
#include "device/support/run_kernel.h"
#include "verbena/device/symm_c.cuh"

namespace verbena {

// What was put is at the peer no sooner than the arrival there makes it so.
struct LateSymmContext : StubSymmContext {
  uint64_t* settled;  // [team_size], in the heap: the round that each peer's puts are here of
};

template <>
struct device::SymmNetwork<LateSymmContext> : device::SymmNetwork<StubSymmContext> {
  static WaitResult arrive(const LateSymmContext& context, int32_t peer, uint32_t barrier, uint64_t round) {
    uint64_t* const word = detail::shift(context.settled + context.team_rank, context.far_deltas[peer]);
    store_relaxed<Scope::kSystem>(word, round);
    return SymmNetwork<StubSymmContext>::arrive(context, peer, barrier, round);
  }
};

}  // namespace verbena

namespace verbena::device_test {
namespace {

using device::Order;
using device::Scope;
using emulator::require;
using emulator::require_done;

// Two domains of two ranks each.
constexpr int32_t kRanks = 4, kDomain = 2;
constexpr uint32_t kThreads = 64;

class StubFleet {
 public:
  explicit StubFleet(int32_t ranks = kRanks, int32_t domain = kDomain)
      : domain_(domain), fleet_(ranks), far_(static_cast<size_t>(ranks)) {
    for (int32_t rank = 0; rank < ranks; ++rank) make_context(rank);
  }
  StubSymmContext& context(int32_t rank) { return contexts_[static_cast<size_t>(rank)]; }
  int64_t number(int32_t rank) { return as_number(&context(rank)); }
  template <typename T>
  T* data(int32_t rank, uint64_t offset_bytes = 0) {
    return fleet_.data<T>(rank, kCountsBytes + offset_bytes);
  }
  template <typename T>
  static int64_t as_number(T* pointer) {
    return static_cast<int64_t>(reinterpret_cast<uint64_t>(pointer));
  }

 private:
  // The first of the heap's data.
  static constexpr uint64_t kCountsBytes = 8 * device::SymmArrivalCount::kWords;

  void make_context(int32_t rank) {
    StubSymmContext& context = this->context(rank);
    static_cast<SymmContext&>(context) = fleet_.context(rank);
    context.type = kSymmStub;
    context.lsa_size = domain_;
    context.lsa_base_rank = rank / domain_ * domain_;
    context.has_remote = 1;
    std::vector<int64_t>& far = far_[static_cast<size_t>(rank)];
    for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
      far.push_back(context.inline_deltas[peer]);
      if (peer / domain_ != rank / domain_) context.inline_deltas[peer] = kSymmOutOfReach;
    }
    context.far_deltas = far.data();
    context.arrival_counts = fleet_.data<uint64_t>(rank);
  }

  const int32_t domain_;
  Fleet fleet_;
  std::vector<std::vector<int64_t>> far_;
  StubSymmContext contexts_[kRanks];  // or fewer
};

uint64_t look(const uint64_t* word) {
  return device::load<Order::kWeak, Scope::kThreads>(word);
}

TEST(SymmBackend, PutsAndSignalsGoItsWay) {
  StubFleet fleet;
  for (int32_t rank = 0; rank < kRanks; ++rank)
    for (uint64_t i = 0; i < 100; ++i) fleet.data<uint64_t>(rank)[i] = 1000 * static_cast<uint64_t>(rank) + i;
  emulator::run_on_ranks(5, kRanks, 1, kThreads, [&](int32_t rank) {
    const int64_t mine = fleet.number(rank);
    const int32_t next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
    uint64_t* const source = fleet.data<uint64_t>(rank);
    uint64_t* const place = fleet.data<uint64_t>(rank, 4096);
    require(symm_put_signal_async(mine, StubFleet::as_number(place), StubFleet::as_number(source), 100, 8,
                                  next, 3, 5, 1) == 0,
            "put and signal");
    require(symm_signal_wait_until(mine, 3, 1, 5) == 5, "added once");
    for (uint64_t i = 0; i < 100; ++i)
      require(look(place + i) == 1000 * static_cast<uint64_t>(before) + i, "data");
    require(
        symm_get(mine, StubFleet::as_number(place + 200), StubFleet::as_number(source), 100, 8, next) == 0,
        "get");
    require(look(place + 299) == 1000 * static_cast<uint64_t>(next) + 99, "got");
    require(symm_barrier(mine) == 0, "barrier");
    require(symm_signal_reset(mine, 3) == 0, "reset");
    require(symm_barrier(mine) == 0, "barrier");
    require(symm_signal(mine, 3, next, 9, 0) == 0, "set");
    require(symm_signal_wait_until(mine, 3, 1, 9) == 9, "was set");
  });
}

// Each tells one out of reach; that one's neighbour reads it there, behind one barrier.
void tell_neighbours(StubFleet& fleet, int32_t rank, uint64_t rounds) {
  const StubSymmContext& context = fleet.context(rank);
  const uint32_t barrier = device::block_index();
  uint64_t* const told = fleet.data<uint64_t>(rank) + 64 * barrier;
  uint64_t* const saying = told + 32;
  const int32_t far = (rank + kDomain) % kRanks, neighbour = rank ^ 1;
  for (uint64_t round = 1; round <= rounds; ++round) {
    const device::BlockGroup block;
    if (block.elect()) device::store<Order::kWeak, Scope::kThreads>(saying, round);
    require_done(device::symm_put_async(context, told, saying, 8, far, block), "put");
    require_done(device::symm_barrier(context, barrier, block), "first");
    require(look(device::symm_lsa_ptr(context, told, neighbour)) == round, "the neighbour was told");
    require_done(device::symm_barrier_arrive(context, barrier, block), "arrive");
    require_done(device::symm_barrier_wait(context, barrier, block), "wait");
  }
}

TEST(SymmBackend, BarriersAreOfAll) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    StubFleet fleet;
    emulator::run_on_ranks(seed, kRanks, 2, kThreads, [&](int32_t rank) { tell_neighbours(fleet, rank, 5); });
  }
}

// Each rank is alone in its domain: a fast rank enters the next barrier while the slowest has not reached the
// last one.
TEST(SymmBackend, NobodyCountsForTwo) {
  constexpr int32_t kAlone = 3;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    StubFleet fleet(kAlone, 1);
    emulator::run_on_ranks(seed, kAlone, 1, 1, [&](int32_t rank) {
      const LateSymmContext context{fleet.context(rank), fleet.data<uint64_t>(rank)};
      for (uint64_t round = 1; round <= 8; ++round) {
        require_done(device::symm_barrier(context, 0, device::ThreadGroup{}), "barrier");
        for (int32_t peer = 0; peer < kAlone; ++peer)
          require(peer == rank || device::load_relaxed<Scope::kSystem>(context.settled + peer) >= round,
                  "what the peer had put is here");
      }
    });
  }
}

// What the network has no function of its own for goes by those that it has.
TEST(SymmBackend, UpdatesWordsAndCopiesRows) {
  StubFleet fleet;
  emulator::run_on_ranks(5, kRanks, 1, kThreads, [&](int32_t rank) {
    const auto& mine = static_cast<const SymmAnyContext<SymmContext, StubSymmContext>&>(
        static_cast<const SymmContext&>(fleet.context(rank)));
    const device::BlockGroup block;
    uint64_t* const words = fleet.data<uint64_t>(rank);
    const int32_t far = (rank + kDomain) % kRanks;
    uint64_t before = 9;
    bool is_right =
        device::symm_fetch_add(mine, words, 1, 3, &before, block) == SymmStatus::kDone && before < kRanks;
    is_right &= device::symm_add(mine, words + 1, 5, far, block) == SymmStatus::kDone;
    is_right &= device::symm_compare_swap(mine, words + 2, 0, 7, far, &before, block) == SymmStatus::kDone &&
                before == 0;
    is_right &= device::symm_put_value(mine, words + 3, 8, far, block) == SymmStatus::kDone;
    is_right &=
        device::symm_put_rows(mine, words + 64, 32, words + 32, 8, 8, 4, far, block) == SymmStatus::kDone;
    require(is_right, "asked");
    require_done(device::symm_wait_until_all(mine, words + 1, 3, SymmCompare::kGreater, 4, block), "written");
    device::SymmRequest asked;
    require(
        device::symm_get_async(mine, words + 128, words + 1, 24, far, &asked, block) == SymmStatus::kDone &&
            device::symm_request_test(mine, asked) &&
            device::symm_request_wait(mine, asked, block) == SymmStatus::kDone,
        "get");
    require(look(words + 130) == 8 || look(words + 130) == 0, "got");
    require_done(device::symm_get_rows(mine, words + 160, 8, words + 64, 32, 8, 4, far, block), "rows");
    require_done(device::symm_quiet(mine, far, block), "quiet");
  });
  EXPECT_EQ(*fleet.data<uint64_t>(3), uint64_t{kRanks});
}

TEST(SymmBackend, PutsPiecesOneByOneBeforeTheirSignal) {
  StubFleet fleet;
  emulator::run_on_ranks(6, kRanks, 1, kThreads, [&](int32_t rank) {
    const auto& mine = static_cast<const SymmAnyContext<SymmContext, StubSymmContext>&>(
        static_cast<const SymmContext&>(fleet.context(rank)));
    const device::BlockGroup block;
    uint64_t* const words = fleet.data<uint64_t>(rank);
    const int32_t far = (rank + kDomain) % kRanks;
    for (uint64_t i = device::thread_index(); i < 8; i += kThreads)
      device::store_relaxed<Scope::kSystem>(words + 32 + i, 100 * rank + i + 1);
    block.sync();
    const SymmPiece pieces[] = {
        {words + 64, words + 34, 24}, {words + 67, words + 32, 0}, {words + 68, words + 32, 16}};
    require_done(device::symm_put_pieces_signal(mine, pieces, 3, far, 9, 2, SymmSignalOperation::kAdd, block),
                 "pieces");
    require_done(device::symm_signal_wait_until<int64_t>(mine, 9, SymmCompare::kEqual, 2, nullptr, block),
                 "signal");
    const auto first = static_cast<uint64_t>(100 * ((rank + kRanks - kDomain) % kRanks));
    for (const auto& [at, wanted] :
         {std::pair{64, first + 3}, {66, first + 5}, {67, uint64_t{0}}, {68, first + 1}, {69, first + 2}})
      require(look(words + at) == wanted, "what came");
  });
}

TEST(SymmBackend, TheTypeChooses) {
  StubFleet fleet;
  const auto code = [](SymmStatus status) { return static_cast<int32_t>(status); };
  emulator::run_kernel(0, 1, kThreads, [&] {
    StubSymmContext& context = fleet.context(0);
    const int64_t mine = fleet.number(0), place = StubFleet::as_number(fleet.data<char>(0));
    require(symm_put_async(mine, place, place, 1, 8, 2) == 0, "by the stub");
    device::sync_block();
    if (device::thread_index() == 0) context.type = kSymmVerbena;
    device::sync_block();
    require(symm_put_async(mine, place, place, 1, 8, 2) == code(SymmStatus::kUnreachable), "no put queues");
    device::sync_block();
    if (device::thread_index() == 0) context.type = kSymmNvshmem;
    device::sync_block();
    require(symm_put_async(mine, place, place, 1, 8, 2) == code(SymmStatus::kUnreachable), "nobody's way");
    require(symm_get(mine, place, place, 1, 8, 2) == code(SymmStatus::kUnreachable), "back neither");
    require(symm_put_value(mine, place, 1, 2) == code(SymmStatus::kUnreachable), "words neither");
    require(symm_put_async(mine, place, place, 1, 8, 1) == 0, "in reach nobody's way is needed");
    require(symm_signal(mine, 0, 0, 5, 1) == 0 && symm_signal_wait_until(mine, 0, 1, 5) == 5,
            "nor for signals");
    require(symm_team_size(mine) == kRanks && symm_lsa_ptr(mine, place, 1) != 0, "what all have");
  });
}

TEST(SymmBackend, IsNotThere) {
  StubFleet fleet;
  fleet.context(0).far_deltas = nullptr;
  emulator::run_kernel(0, 1, kThreads, [&] {
    require(device::symm_signal(fleet.context(0), 0, 2, 1, SymmSignalOperation::kAdd, device::BlockGroup{}) ==
                SymmStatus::kUnreachable,
            "far");
    require(device::symm_barrier(fleet.context(0), 0) == SymmStatus::kUnreachable, "barrier");
  });
}

}  // namespace
}  // namespace verbena::device_test
