// Windows in GPU memory, over a stand-in for CUDA's driver (tests/softverbs/fake_cuda.cc): two GPUs whose
// memory faults when the CPU touches it. Registered memory above all.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/log_capture.h"
#include "symm/support/contexts.h"

namespace verbena::symm {
namespace {

using base::Status;
using base::SymmPath;

using Pointer = unsigned long long;

constexpr size_t kPieceBytes = 2 << 20;

template <typename... Arguments>
void call(const char* name, Arguments... arguments) {
  void* const function = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  ASSERT_NE(function, nullptr) << name;
  ASSERT_EQ(reinterpret_cast<int (*)(Arguments...)>(function)(arguments...), 0) << name;
}

void use_gpu(uint32_t rank) {
  void* context = nullptr;
  call("cuDevicePrimaryCtxRetain", &context, static_cast<int>(rank % 2));
  call("cuCtxSetCurrent", context);
}
void run_on_gpus(const JoinedBody& body) {
  run_ranks(2, body, use_gpu);
}
void write(std::byte* to, uint64_t value) {
  call("cuMemcpyHtoD_v2", reinterpret_cast<unsigned long long>(to), static_cast<const void*>(&value),
       sizeof(value));
}
uint64_t read(const std::byte* from) {
  uint64_t value = 0;
  call("cuMemcpyDtoH_v2", static_cast<void*>(&value), reinterpret_cast<unsigned long long>(from),
       sizeof(value));
  return value;
}

// As an allocator that unmaps a part of its address range and maps other memory there.
void map_anew(uint32_t rank, std::byte* address, size_t length_bytes) {
  auto piece = base::MemoryPiece::allocate({static_cast<int>(rank % 2)}, length_bytes);
  ASSERT_TRUE(piece);
  call("cuMemUnmap", reinterpret_cast<unsigned long long>(address), length_bytes);
  auto mapped = base::MappedPiece::map(*piece, piece->owner(), address);
  ASSERT_TRUE(mapped);
  static std::mutex mutex;
  static std::vector<base::MappedPiece> kept;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(*mapped));
}

// As an application's allocator gets it from cuMemCreate.
std::byte* allocate(uint32_t rank, size_t length_bytes) {
  auto piece = base::MemoryPiece::allocate({static_cast<int>(rank % 2)}, length_bytes);
  auto range = base::AddressRange::reserve({static_cast<int>(rank % 2)}, length_bytes);
  if (!piece || !range) return nullptr;
  auto mapped = base::MappedPiece::map(*piece, piece->owner(), range->begin());
  if (!mapped) return nullptr;
  // For as long as the process; the mapping goes first.
  static std::mutex mutex;
  static std::vector<std::pair<base::AddressRange, base::MappedPiece>> kept;
  const std::lock_guard lock(mutex);
  kept.emplace_back(std::move(*range), std::move(*mapped));
  return kept.back().second.begin();
}

class GpuWindowTest : public testing::TestWithParam<SymmPath> {
 protected:
  void run(uint32_t count_ranks, const std::function<void(Context&)>& body) {
    const auto check = [&](Context& context) {
      ASSERT_EQ(context.gpu(), static_cast<int>(context.rank() % 2));
      body(context);
    };
    run_contexts(count_ranks, make_settings(GetParam()), check, use_gpu);
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, GpuWindowTest, testing::Values(SymmPath::kAuto, SymmPath::kRdma), name_path);

TEST_P(GpuWindowTest, LiesAtOnePlaceOfEveryHeap) {
  run(2, [](Context& context) {
    auto window = context.allocate_window(3 << 20);
    ASSERT_TRUE(window);
    EXPECT_EQ((*window)->place.bytes, 2 * kPieceBytes);
    EXPECT_EQ(read((*window)->address + 8), 0U);
    ASSERT_TRUE(context.barrier());
    std::byte* const there = context.find_peer(**window, 1 - context.rank());
    ASSERT_EQ(there == nullptr, GetParam() == SymmPath::kRdma);
    if (there != nullptr) write(there + 8, context.rank() + 1);
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(read((*window)->address + 8), there == nullptr ? 0 : 2 - context.rank());
    ASSERT_TRUE(context.free_window(**window));
  });
}

TEST_P(GpuWindowTest, RegisteredMemoryHasASecondAddress) {
  run(2, [](Context& context) {
    std::byte* const mine = allocate(context.rank(), 2 * kPieceBytes);
    ASSERT_NE(mine, nullptr);
    write(mine + 4096, 7 + context.rank());
    auto window = context.register_window(mine + 4096, 1000);
    ASSERT_TRUE(window);
    EXPECT_EQ(read((*window)->address), 7 + context.rank()) << "it keeps what is in it";
    EXPECT_EQ(context.find_window(mine + 4096), *window);
    EXPECT_EQ(context.find_window((*window)->address), *window);
    EXPECT_EQ(context.find_window(mine), nullptr);
    if (std::byte* const there = context.find_peer(**window, 1 - context.rank())) {
      EXPECT_EQ(read(there), 8 - context.rank());
    }
    // Again: the same window, freed as often.
    const auto again = context.register_window(mine + 4096, 1000);
    ASSERT_TRUE(again);
    EXPECT_EQ(*again, *window);
    ASSERT_TRUE(context.free_window(**window));
    EXPECT_EQ(context.find_window(mine + 4096), *window);
    ASSERT_TRUE(context.free_window(**window));
    EXPECT_EQ(context.find_window(mine + 4096), nullptr);
    EXPECT_EQ(read(mine + 4096), 7 + context.rank()) << "the caller's memory stays";
  });
}

// What kernels look at.
uint64_t count_aliases(Context& context) {
  return read(reinterpret_cast<const std::byte*>(&context.world().context().aliases->count));
}
SymmAlias read_alias(Context& context, uint64_t entry) {
  const SymmAlias& at = context.world().context().aliases->entries[entry];
  const auto word = [](const uint64_t& one) { return read(reinterpret_cast<const std::byte*>(&one)); };
  return {word(at.begin), word(at.end), word(at.delta)};
}

TEST_P(GpuWindowTest, KernelsFindRegisteredMemory) {
  run(2, [](Context& context) {
    EXPECT_EQ(count_aliases(context), 0U);
    std::byte* const first = allocate(context.rank(), kPieceBytes);
    std::byte* const second = allocate(context.rank(), kPieceBytes);
    const auto one = context.register_window(first + 64, 1000), two = context.register_window(second, 512);
    ASSERT_TRUE(one && two);
    EXPECT_EQ(count_aliases(context), 2U);
    const SymmAlias alias = read_alias(context, 0);
    const auto begin = reinterpret_cast<uint64_t>(first + 64);
    EXPECT_EQ(alias.begin, begin);
    EXPECT_EQ(alias.end, begin + 1000);
    EXPECT_EQ(begin + alias.delta, reinterpret_cast<uint64_t>((*one)->address));
    ASSERT_TRUE(context.free_window(**one));
    EXPECT_EQ(read_alias(context, 0).end, 0U) << "no longer";
    EXPECT_NE(read_alias(context, 1).end, 0U);
    const auto three = context.register_window(first, 8);
    ASSERT_TRUE(three);
    EXPECT_EQ(count_aliases(context), 2U) << "the entry is used again";
    EXPECT_EQ(read_alias(context, 0).begin, reinterpret_cast<uint64_t>(first));
  });
}

TEST_P(GpuWindowTest, ARegistrationIsOfTheMemoryNotOfTheAddress) {
  run(2, [](Context& context) {
    const uint32_t rank = context.rank();
    std::byte* const mine = allocate(rank, 2 * kPieceBytes);
    ASSERT_NE(mine, nullptr);
    const auto old = context.register_window(mine, 1000);
    ASSERT_TRUE(old);
    write((*old)->address, 5);
    // One rank's memory goes; the other's stays.
    if (rank == 0) map_anew(rank, mine, 2 * kPieceBytes);
    write(mine, 70 + rank);
    const auto made = context.register_window(mine, 1000);
    ASSERT_TRUE(made);
    EXPECT_NE(*made, *old) << "new for all";
    EXPECT_EQ(read((*made)->address), 70 + rank);
    EXPECT_EQ(context.find_window(mine), *made);
    EXPECT_EQ(read((*old)->address), rank == 0 ? 5 : 71U) << "the old window keeps its memory";
    EXPECT_EQ(count_aliases(context), 1U);
    EXPECT_EQ(reinterpret_cast<uint64_t>(mine) + read_alias(context, 0).delta,
              reinterpret_cast<uint64_t>((*made)->address))
        << "kernels find the new one";
    const auto again = context.register_window(mine, 1000);
    ASSERT_TRUE(again);
    EXPECT_EQ(*again, *made);
    ASSERT_TRUE(context.barrier());
    if (std::byte* const there = context.find_peer(**made, 1 - rank)) {
      EXPECT_EQ(read(there), 71 - rank);
    }
    ASSERT_TRUE(context.free_window(**old));
    EXPECT_EQ(context.find_window(mine), *made);
  });
}

TEST_P(GpuWindowTest, WhatCannotBeRegisteredIsRefusedForAll) {
  run(2, [](Context& context) {
    unsigned long long plain = 0;
    call("cuMemAlloc_v2", &plain, kPieceBytes);
    EXPECT_EQ(context.register_window(reinterpret_cast<void*>(plain), 4096).error().status,
              Status::kInvalidUsage);
    std::byte* const mine = allocate(context.rank(), kPieceBytes);
    EXPECT_EQ(context.register_window(mine, kPieceBytes + 1).error().status, Status::kInvalidArgument);
    // One rank's is at another place of its piece.
    EXPECT_EQ(context.register_window(mine + context.rank() * 4096, 4096).error().status,
              Status::kInvalidUsage);
    EXPECT_TRUE(context.register_window(mine, kPieceBytes)) << "the context goes on";
  });
}

// Another library's memory of a GPU, mapped by it.
TEST(BorrowedGpuHeap, WindowsAndWordsAreCleared) {
  const ContextSettings settings = make_settings();
  const uint64_t words_bytes = settings.measure_words(2);
  run_on_gpus([&](bootstrap::Bootstrap joined, uint32_t rank) {
    BorrowedHeap heap;
    heap.begin = allocate(rank, kPieceBytes);
    heap.length_bytes = kPieceBytes;
    heap.deltas = {kSymmOutOfReach, kSymmOutOfReach};
    heap.deltas[rank] = 0;
    std::byte* const begin = heap.begin;
    for (uint64_t at = 0; at < kPieceBytes; at += 4096) write(begin + at, 1);
    const auto context = Context::create(std::move(joined), settings, std::move(heap));
    ASSERT_TRUE(context);
    const auto window = (*context)->allocate_window(8192);
    ASSERT_TRUE(window);
    EXPECT_EQ((*window)->address, begin + words_bytes);
    for (uint64_t at = 0; at < words_bytes + 8192; at += 4096) EXPECT_EQ(read(begin + at), 0U);
    EXPECT_EQ(read(begin + (words_bytes + 8192 + 4095) / 4096 * 4096), 1U) << "and nothing else";
    EXPECT_TRUE((*context)->leave());
  });
}

TEST(BorrowedGpuHeap, ItsGpuIsTheCurrentOne) {
  run_on_gpus([&](bootstrap::Bootstrap joined, uint32_t) {
    BorrowedHeap heap;
    heap.begin = allocate(1, kPieceBytes);
    heap.length_bytes = kPieceBytes;
    heap.deltas = {0, 0};
    const auto context = Context::create(std::move(joined), make_settings(), std::move(heap));
    EXPECT_EQ(context.error().status, Status::kInvalidArgument);
    EXPECT_THAT(base::last_failure(), testing::HasSubstr("the heap is on GPU 1, but GPU 0 is current"));
  });
}

// What the driver says of the order in which a NIC's writes are seen.
TEST(NicWriteOrderTest, DecidesWhetherAndHowRanksMeet) {
  const struct {
    int order;
    bool is_possible;
    uint64_t meets_twice;
  } cases[] = {{0, false, 0}, {100, true, 1}, {200, true, 0}};
  for (const auto& one : cases) {
    call("fake_set_write_order", one.order);
    run_on_gpus([&](bootstrap::Bootstrap joined, uint32_t) {
      const auto context = Context::create(std::move(joined), make_settings(SymmPath::kRdma));
      ASSERT_EQ(context.error().status == Status::kInvalidUsage, !one.is_possible);
      if (!one.is_possible) return;
      EXPECT_EQ((*context)->world().context().meets_twice, one.meets_twice);
      EXPECT_TRUE((*context)->leave());
    });
  }
}

// Its memory and what kernels are told of it are the GPU's.
TEST_P(GpuWindowTest, AWorkspace) {
  run(2, [](Context& context) {
    const auto made = context.make_workspace(&context.world(), {.slots_bytes = 1 << 16, .blocks = 4});
    ASSERT_TRUE(made);
    const auto& kernel = *reinterpret_cast<const SymmWorkspace<>*>(&(*made)->team->context());
    const auto at = [](const void* address) {
      return const_cast<std::byte*>(static_cast<const std::byte*>(address));
    };
    const auto* const device = reinterpret_cast<const std::byte*>((*made)->team->device_context());
    EXPECT_EQ(read(device + offsetof(SymmWorkspace<>, blocks.slots)),
              reinterpret_cast<uint64_t>(kernel.blocks.slots));
    write(at(kernel.context.failure), static_cast<uint64_t>(SymmWait::kPacket));
    write(at(kernel.blocks.slots), 5);
    EXPECT_THAT(context.find_failures()->text, testing::HasSubstr("workspace 1 for team 0"));
    ASSERT_TRUE(context.reset_workspace(**made));
    EXPECT_EQ(context.find_failures()->text, "");
    EXPECT_EQ(read(at(kernel.blocks.slots)), 0U);
    EXPECT_TRUE(context.free_workspace(**made));
  });
}

TEST_P(GpuWindowTest, TheWrongGpuIsAnError) {
  run(2, [](Context& context) {
    use_gpu(context.rank() + 1);
    EXPECT_EQ(context.allocate_window(1).error().status, Status::kInvalidUsage);
    use_gpu(context.rank());
    EXPECT_TRUE(context.allocate_window(1));
  });
}

// A NIC of this machine does not know the stand-in's memory.
class Softverbs : public testing::Environment {
  void SetUp() override {
    setenv("VERBENA_IBVERBS_LIB", "softverbs", 1);
    ASSERT_TRUE(base::load_parameters());
  }
};
const testing::Environment* const softverbs = testing::AddGlobalTestEnvironment(new Softverbs);

// ---- Multicast: an object of the stand-in's, which carries nothing

using testing::Contains;
using testing::HasSubstr;

class MulticastTest : public testing::Test {
 protected:
  void SetUp() override {
    // No object of a real driver's: it could put the GPUs of a shared machine out of service.
    ASSERT_NE(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_offer_multicast"), nullptr);
    call("fake_offer_multicast", 1);
    set_nvls("2");
  }
  void TearDown() override {
    call("fake_offer_multicast", 0);
    refuse("", 0);
    EXPECT_EQ(count(), std::pair(0, 0)) << "nothing is left";
  }
  static void set_nvls(const char* value) {
    setenv("NCCL_NVLS_ENABLE", value, 1);
    ASSERT_TRUE(base::load_parameters());
  }
  static void refuse(const char* name, int gpu) { call("fake_refuse_multicast", name, gpu); }
  // Objects, and pieces of memory that are bound.
  static std::pair<int, int> count() {
    std::pair<int, int> all;
    call("fake_count_multicast", &all.first, &all.second);
    return all;
  }
  static ContextSettings make_asking_settings(SymmPath path = SymmPath::kAuto) {
    ContextSettings settings = make_settings(path);
    settings.multicast = true;
    return settings;
  }
  static void run(uint32_t ranks, const std::function<void(Context&)>& body,
                  SymmPath path = SymmPath::kAuto) {
    run_contexts(ranks, make_asking_settings(path), body, use_gpu);
  }
  // Loads and stores between two ranks go on as ever.
  static void expect_no_multicast(Context& context) {
    EXPECT_EQ(context.world().context().multicast_delta, 0U);
    const auto window = context.allocate_window(8);
    ASSERT_TRUE(window);
    ASSERT_TRUE(context.barrier());
    write(context.find_peer(**window, 1 - context.rank()), context.rank() + 1);
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(read((*window)->address), 2 - context.rank());
    EXPECT_EQ(count(), std::pair(0, 0));
    ASSERT_TRUE(context.barrier());
  }
  static std::vector<std::string> find_lines(const base::LogCapture& log) {
    std::vector<std::string> lines;
    for (const std::string& line : log.warnings())
      if (line.find("MULTICAST") != std::string::npos) lines.push_back(line);
    return lines;
  }
};

TEST_F(MulticastTest, EachWindowIsBoundOnAllGpus) {
  run(2, [](Context& context) {
    const SymmContext world = context.world().context();
    EXPECT_NE(world.multicast_delta, 0U);
    EXPECT_EQ(context.in_reach().context().multicast_delta, world.multicast_delta);
    const auto window = context.allocate_window(3 << 20);
    ASSERT_TRUE(window);
    EXPECT_EQ((*window)->place.bytes, 2 * kPieceBytes) << "what can be bound";
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(count(), std::pair(1, 4)) << "the teams' words and this one, for two GPUs";
    // What is mapped there is the object, at the same offset as the window in the heap.
    Pointer begin = 0;
    size_t length_bytes = 0;
    const auto there = reinterpret_cast<Pointer>((*window)->address) + world.multicast_delta;
    call("cuMemGetAddressRange_v2", &begin, &length_bytes, there);
    EXPECT_EQ(there - begin, (*window)->place.heap_offset);
    EXPECT_EQ(length_bytes, size_t{16} << 20);
    // It leads to all ranks in reach: not for teams of some of them.
    const auto alone = context.split_team(&context.world(), context.rank(), 0);
    ASSERT_TRUE(alone);
    EXPECT_EQ((*alone)->context().multicast_delta, 0U);
    ASSERT_TRUE(context.barrier());
    ASSERT_TRUE(context.free_window(**window));
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(count(), std::pair(1, 2));
    ASSERT_TRUE(context.barrier());
    // Another one at the same place.
    ASSERT_TRUE(context.allocate_window(8));
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(count(), std::pair(1, 4));
    ASSERT_TRUE(context.barrier());
  });
}

TEST_F(MulticastTest, IsNotUsedUnasked) {
  const base::LogCapture log;
  EXPECT_FALSE(ContextSettings::from_parameters().multicast) << "the default";
  run_contexts(2, make_settings(), expect_no_multicast, use_gpu);
  EXPECT_THAT(find_lines(log), testing::IsEmpty());
}

TEST_F(MulticastTest, AllAskOrNobody) {
  run_on_gpus([&](bootstrap::Bootstrap joined, uint32_t rank) {
    const auto context =
        Context::create(std::move(joined), rank == 0 ? make_settings() : make_asking_settings());
    EXPECT_EQ(context.error().status, Status::kInvalidUsage);
    EXPECT_THAT(base::last_failure(), HasSubstr("VERBENA_SYMM_MULTICAST"));
  });
}

TEST_F(MulticastTest, IsNotUsedWhereTheDriverHasNone) {
  call("fake_offer_multicast", 0);
  const base::LogCapture log;
  run(2, expect_no_multicast);
  EXPECT_THAT(find_lines(log),
              testing::UnorderedElementsAre(HasSubstr("symm: rank 0: VERBENA_SYMM_MULTICAST has no effect: "
                                                      "rank 0: the GPU does not support multicast"),
                                            HasSubstr("symm: rank 1: VERBENA_SYMM_MULTICAST has no effect: "
                                                      "rank 0: the GPU does not support multicast")));
}

TEST_F(MulticastTest, IsNotUsedWhereNcclMayNot) {
  set_nvls("0");
  const base::LogCapture log;
  run(2, expect_no_multicast);
  EXPECT_THAT(find_lines(log), testing::Each(HasSubstr("has no effect: rank 0: NCCL_NVLS_ENABLE is 0")));
  EXPECT_THAT(find_lines(log), testing::SizeIs(2));
}

TEST_F(MulticastTest, IsNotUsedAmongRanksThatShareAGpu) {
  const base::LogCapture log;
  run(3, [](Context& context) { EXPECT_EQ(context.world().context().multicast_delta, 0U); });
  EXPECT_THAT(find_lines(log), testing::Each(HasSubstr("has no effect: ranks 0 and 2 share a GPU")));
  EXPECT_THAT(find_lines(log), testing::SizeIs(3));
}

TEST_F(MulticastTest, IsNotUsedWithoutPeers) {
  const base::LogCapture log;
  run(
      2, [](Context& context) { EXPECT_EQ(context.world().context().multicast_delta, 0U); }, SymmPath::kRdma);
  EXPECT_THAT(find_lines(log), Contains(HasSubstr("no rank can map another rank")));
}

TEST_F(MulticastTest, IsNotUsedInHostMemory) {
  const base::LogCapture log;
  run_contexts(2, make_asking_settings(), [](Context& context) {
    EXPECT_EQ(context.world().context().multicast_delta, 0U);
    EXPECT_TRUE(context.allocate_window(8));
  });
  EXPECT_THAT(find_lines(log), Contains(HasSubstr("rank 0: this rank has no GPU")));
}

// One rank's driver refuses one step: all go on without, and each says why in one line.
TEST_F(MulticastTest, ARefusedStepIsNoFailure) {
  const std::pair<const char*, int> steps[] = {{"cuMulticastGetGranularity", 1},
                                               {"cuMulticastCreate", 0},
                                               {"cuMemExportToShareableHandle", 0},
                                               {"cuMemImportFromShareableHandle", 1},
                                               {"cuMulticastAddDevice", 0},
                                               {"cuMulticastAddDevice", 1},
                                               {"cuMemAddressReserve", 1},
                                               {"cuMemMap", 1},
                                               {"cuMemSetAccess", 0},
                                               {"cuMulticastBindMem", 1}};
  for (const auto& [name, gpu] : steps) {
    SCOPED_TRACE(name);
    const base::LogCapture log;
    refuse(name, gpu);
    run(2, expect_no_multicast);
    const auto cause = HasSubstr("has no effect: rank " + std::to_string(gpu) + ": " + name);
    EXPECT_THAT(find_lines(log), testing::ElementsAre(cause, cause));
    EXPECT_EQ(count(), std::pair(0, 0));
  }
  // And once more, as if nothing had been.
  refuse("", 0);
  run(2, [](Context& context) { EXPECT_NE(context.world().context().multicast_delta, 0U); });
}

// The others of a window that one rank cannot bind do without it too, and the context is as before.
TEST_F(MulticastTest, AWindowThatCannotBeBoundIsRefusedForAll) {
  run(2, [](Context& context) {
    ASSERT_TRUE(context.barrier());
    if (context.rank() == 0) refuse("cuMulticastBindMem", 1);
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(context.allocate_window(8).error().status, Status::kCuda);
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(count(), std::pair(1, 2));
    if (context.rank() == 0) refuse("", 0);
    ASSERT_TRUE(context.barrier());
    // Half of what can be bound.
    std::byte* const half = allocate(context.rank(), kPieceBytes);
    EXPECT_EQ(context.register_window(half, 1000).error().status, Status::kCuda);
    EXPECT_THAT(base::last_failure(), HasSubstr("Unset VERBENA_SYMM_MULTICAST"));
    std::byte* const whole = allocate(context.rank(), 2 * kPieceBytes);
    const auto window = context.register_window(whole, 1000);
    ASSERT_TRUE(window);
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(count(), std::pair(1, 4));
    ASSERT_TRUE(context.barrier());
    ASSERT_TRUE(context.free_window(**window));
  });
}

TEST_F(MulticastTest, TwoContextsHaveAnObjectEach) {
  run(2, [](Context& first) {
    const auto outer = first.world().context().multicast_delta;
    static bootstrap::UniqueId shared;
    if (first.rank() == 0) shared = bootstrap::take(bootstrap::make_unique_id(), "unique id");
    ASSERT_TRUE(first.barrier());
    auto joined = bootstrap::Bootstrap::join(shared, first.rank(), 2);
    ASSERT_TRUE(joined);
    {
      const auto second = Context::create(std::move(*joined), make_asking_settings());
      ASSERT_TRUE(second);
      EXPECT_NE((*second)->world().context().multicast_delta, 0U);
      EXPECT_EQ(first.world().context().multicast_delta, outer);
      ASSERT_TRUE(first.barrier());
      EXPECT_EQ(count(), std::pair(2, 4));
      ASSERT_TRUE((*second)->leave());
    }
    ASSERT_TRUE(first.barrier());
    EXPECT_EQ(count(), std::pair(1, 2));
    ASSERT_TRUE(first.barrier());
  });
}

// A rank that goes leaves the object to the others, who give it back when they go.
TEST_F(MulticastTest, APeerThatLeavesAlone) {
  run_on_gpus([&](bootstrap::Bootstrap joined, uint32_t rank) {
    const auto context = Context::create(std::move(joined), make_asking_settings());
    ASSERT_TRUE(context);
    EXPECT_NE((*context)->world().context().multicast_delta, 0U);
    ASSERT_TRUE((*context)->barrier());
    if (rank == 0) return;  // the object's creator
    while ((*context)->barrier()) {
    }
    EXPECT_FALSE((*context)->allocate_window(8));
  });
}

// One that goes while the object is made is an error for the others, and nothing is left.
TEST_F(MulticastTest, APeerThatLeavesMeanwhile) {
  for (const uint32_t leaver : {0, 1}) {
    run_on_gpus([&](bootstrap::Bootstrap joined, uint32_t rank) {
      const base::MemoryOwner owner{static_cast<int>(rank)};
      const auto reach = Reach::find(joined, owner, SymmPath::kAuto);
      ASSERT_TRUE(reach);
      const auto unit_bytes = agree_on_multicast(joined, *reach, owner);
      ASSERT_TRUE(unit_bytes);
      ASSERT_NE(*unit_bytes, 0U);
      if (rank == leaver) return;
      const auto made = Multicast::make(joined, *reach, owner, *unit_bytes, *unit_bytes);
      EXPECT_FALSE(made);
    });
    EXPECT_EQ(count(), std::pair(0, 0));
  }
}

}  // namespace
}  // namespace verbena::symm
