#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <future>
#include <span>

#include "gpu_fixture.h"
#include "softverbs/shared/shared_layout.h"

namespace {
std::atomic<bool> has_memory_for_requests{true};
bool exits_at_work = false;
}  // namespace

// LeakSanitizer of gcc 12 fails on thread-local memory of libraries that were loaded later, such as the
// stand-in, where their threads still work.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return exits_at_work ? 1 : 0;
}

// The kernel's, but for the table of requests to an owner of GPU memory, which a test refuses.
extern "C" __attribute__((visibility("default"))) int posix_fallocate(int fd, off_t offset, off_t bytes) {
  constexpr auto kTable = static_cast<off_t>(verbena::softverbs::kGpuService);
  if (!has_memory_for_requests && offset <= kTable && kTable < offset + bytes) return ENOSPC;
  static const auto original =
      reinterpret_cast<int (*)(int, off_t, off_t)>(dlsym(RTLD_NEXT, "posix_fallocate"));
  return original(fd, offset, bytes);
}

// Atomic operations on each kind of memory.
namespace verbena::softverbs_test {
namespace {

// Adds from two queue pairs at once to one word of each kind of memory: none is lost, each sees what was
// there before.
void drive_adds(Kind far_kind) {
  constexpr uint64_t kAdds = 40;
  auto [node, first, second] = ConnectedPair();
  Registered far(node, far_kind, 0);
  Buffer results(node, 16 * kAdds);
  far.memory.clear();
  const auto add = [&](QueuePair& pair, uint64_t i) {
    return Send(IBV_WR_ATOMIC_FETCH_AND_ADD, i).from(results, 8 * i, 8).add(1, far.remote(64)).post(pair);
  };
  for (uint64_t i = 0; i < 2 * kAdds; ++i) ASSERT_EQ(add(i % 2 == 0 ? first : second, i), 0);
  for (uint64_t i = 0; i < 2 * kAdds; ++i) ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  std::vector<uint64_t> before(2 * kAdds);
  memcpy(before.data(), results.data(), before.size() * 8);
  std::sort(before.begin(), before.end());
  for (uint64_t i = 0; i < 2 * kAdds; ++i) EXPECT_EQ(before[i], i);
  Buffer copy(node, 8);
  ASSERT_EQ(Send(IBV_WR_RDMA_READ, 1).from(copy, 0, 8).to(far.remote(64)).run(first), IBV_WC_SUCCESS);
  EXPECT_EQ(copy.word(), 2 * kAdds);
}

// Writes from one GPU to another, and adds behind them, which the device does on another stream. Who sees the
// word finds what was written before the adds that it counts.
void drive_adds_behind_writes(Kind kind) {
  constexpr uint64_t kAdds = 8, kWritesEach = 4, kWrites = kAdds * kWritesEach, kStride = 64;
  auto [node, first, second] = ConnectedPair();
  Registered near(node, kind, count_gpus() - 1), far(node, kind, 0);
  Buffer results(node, 8 * kAdds);
  far.memory.clear(kStride * (kWrites + 1));
  near.memory.fill(1, 8);
  const uint64_t word = far.memory.address();
  for (uint64_t i = 0; i < kWrites; ++i) {
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, i)
                  .from(near.piece(0, 8))
                  .to(word + kStride * (i + 1), far.mr->rkey)
                  .post(first),
              0);
    if (i % kWritesEach != kWritesEach - 1) continue;
    Send add(IBV_WR_ATOMIC_FETCH_AND_ADD, i);
    add.from(results, 8 * (i / kWritesEach), 8);
    add.request.wr.atomic = {word, kWritesEach, 0, far.mr->rkey};
    ASSERT_EQ(add.post(first), 0);
  }
  for (uint64_t seen = 0; seen < kWrites;) {
    seen = far.memory.read_word(0);
    ASSERT_LE(seen, kWrites);
    const std::vector<uint8_t> found = far.memory.read(0, kStride * (kWrites + 1));
    for (uint64_t i = 0; i < seen; ++i)
      ASSERT_NE(found[kStride * (i + 1)], 0) << "write " << i << ", and the word says " << seen;
  }
  ASSERT_EQ(node.wait_completions(kWrites + kAdds).size(), kWrites + kAdds);
}

// Small writes to memory of relaxed ordering go to the driver many at a time; others keep their order. The
// adds behind them come after all.
void drive_relaxed_writes(bool is_relaxed) {
  constexpr uint64_t kWrites = 24, kStride = 64;
  auto [node, first, second] = ConnectedPair();
  Registered near(node, Kind::kExportable, count_gpus() - 1);
  Registered far(node, Kind::kExportable, 0, is_relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0);
  Buffer result(node, 8);
  far.memory.clear(kStride * (kWrites + 1));
  near.memory.fill(1, kStride * kWrites);
  const int batches_before = count_copy_calls().batches;
  for (uint64_t i = 0; i < kWrites; ++i) {
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, i)
                  .from(near.piece(kStride * i, 8))
                  .to(far.remote(kStride * (i + 1)))
                  .post(first),
              0);
  }
  ASSERT_EQ(Send(IBV_WR_ATOMIC_FETCH_AND_ADD, kWrites).from(result, 0, 8).add(1, far.remote()).post(first),
            0);
  uint8_t word = 0;
  while (word == 0) word = far.memory.read(0, 1)[0];
  const std::vector<uint8_t> found = far.memory.read(0, kStride * (kWrites + 1));
  for (uint64_t i = 0; i < kWrites; ++i)
    EXPECT_TRUE(
        near.memory.read(kStride * i, 8) ==
        std::vector<uint8_t>(found.begin() + kStride * (i + 1), found.begin() + kStride * (i + 1) + 8))
        << "write " << i;
  ASSERT_EQ(node.wait_completions(kWrites + 1).size(), kWrites + 1);
  // Over the wire the data are bounced in pieces.
  if (const CopyCalls calls = count_copy_calls(); calls.all != 0 && !is_over_wire()) {
    EXPECT_EQ(calls.batches > batches_before, is_relaxed);
  }
}

// A small write that continues the one before it, to what an earlier write of the same batch wrote: the later
// one stays. All go to the driver together.
void drive_continued_write() {
  constexpr uint64_t kPart = 128;
  auto [node, first, second] = ConnectedPair();
  Registered near(node, Kind::kExportable, count_gpus() - 1);
  Registered far(node, Kind::kExportable, 0, IBV_ACCESS_RELAXED_ORDERING);
  near.memory.fill(1, 16 * kPart);
  far.memory.clear(16 * kPart);
  struct Write {
    uint64_t to, from;
  };
  const Write parts[] = {{1, 8}, {4, 10}, {0, 5}, {1, 6}};
  std::vector<Send> sends;
  for (const Write& part : parts) {
    Send& write = sends.emplace_back(IBV_WR_RDMA_WRITE, part.from);
    write.from(near.piece(kPart * part.from, kPart)).to(far.remote(kPart * part.to));
  }
  ASSERT_EQ(post_together(first, sends), 0);
  ASSERT_EQ(node.wait_completions(static_cast<int>(sends.size())).size(), sends.size());
  for (const Write& part : std::span(parts).subspan(1))
    EXPECT_EQ(far.memory.read(kPart * part.to, kPart), near.memory.read(kPart * part.from, kPart)) << part.to;
}

// A write and an add behind it, in one call.
int post_write_and_add(const QueuePair& pair, ibv_sge data, const RemoteMemory& target, const Buffer& former,
                       const RemoteMemory& word, uint64_t operand = 1) {
  Send write(IBV_WR_RDMA_WRITE, 1), add(IBV_WR_ATOMIC_FETCH_AND_ADD, 2);
  write.from(data).to(target);
  add.from(former, 0, 8).add(operand, word);
  return post_together(pair, {&write, &add});
}

struct ShortWrite {
  uint64_t bytes, shift;
  bool is_from_host;

  // The owner stores it with the add behind it.
  bool is_carried() const { return bytes % 8 == 0 && bytes <= 32 && shift % 8 == 0; }
};

// A short write and an add behind it, alone on their queue pair; then the same place is written again.
void drive_short_writes(Kind kind, const ShortWrite& shape) {
  constexpr uint64_t kRounds = 12, kAt = 512;
  const auto [bytes, shift, is_from_host] = shape;
  auto [node, first, second] = ConnectedPair();
  Registered near(node, is_from_host ? Kind::kPageable : kind, is_from_host ? 0 : count_gpus() - 1);
  Registered far(node, kind, 0, IBV_ACCESS_RELAXED_ORDERING);
  Buffer result(node, 8);
  far.memory.clear(4096);
  near.memory.fill(3, 4096);
  const uint64_t word = far.memory.address();
  const int calls_before = count_copy_calls().all;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const bool is_overwritten = round % 3 == 0;
    Send write(IBV_WR_RDMA_WRITE, 1), add(IBV_WR_ATOMIC_FETCH_AND_ADD, 2), again(IBV_WR_RDMA_WRITE, 3);
    write.from(near.piece(64 * round, bytes)).to(word + kAt + shift, far.mr->rkey);
    again.from(near.piece(2048 + 64 * round, bytes)).to(word + kAt + shift, far.mr->rkey);
    add.from(result, 0, 8).request.wr.atomic = {word, 1, 0, far.mr->rkey};
    std::vector<Send*> sends{&write, &add};
    if (is_overwritten) sends.push_back(&again);
    ASSERT_EQ(post_together(first, sends), 0);
    uint64_t seen = 0;
    while (seen != round && !is_overwritten) {
      seen = far.memory.read_word(0);
      if (seen != round) continue;
      EXPECT_EQ(far.memory.read(kAt + shift, bytes), near.memory.read(64 * round, bytes));
    }
    for (const ibv_wc& completion : node.wait_completions(is_overwritten ? 3 : 2))
      ASSERT_EQ(completion.status, IBV_WC_SUCCESS);
    EXPECT_EQ(result.word(), round - 1);
    if (is_overwritten) {
      EXPECT_EQ(far.memory.read(kAt + shift, bytes), near.memory.read(2048 + 64 * round, bytes));
    }
  }
  // Each add loads its word; what is carried is loaded from a GPU. Other writes are a copy of their own, and
  // where the owner copies too, more.
  const uint64_t calls = static_cast<uint64_t>(count_copy_calls().all - calls_before);
  const uint64_t least = kRounds + kRounds / 3;
  if (calls != 0 && kind != Kind::kPieced && !is_over_wire()) {
    EXPECT_EQ(calls, shape.is_carried() && is_from_host ? least : least + kRounds);
  }
}

// A short write and the add behind it, where CUDA refuses to load: neither happens.
void drive_refused_loads(Kind kind, bool is_from_host) {
  Node node;
  Registered near(node, is_from_host ? Kind::kPageable : kind, is_from_host ? 0 : count_gpus() - 1);
  Registered far(node, kind, 0);
  Buffer result(node, 8);
  near.memory.fill(1, 64);
  far.memory.clear(128);
  for (const bool is_refused : {true, false}) {
    QueuePair first(node), second(node);
    meet(first, second);
    if (is_refused && !refuse_copies_after(0)) continue;  // a real driver
    ASSERT_EQ(post_write_and_add(first, near.piece(0, 8), far.remote(64), result, far.remote()), 0);
    const ibv_wc of_write = node.wait_completion(), of_add = node.wait_completion();
    EXPECT_TRUE(refuse_copies_after(INT_MAX) || !is_refused);
    if (is_refused) {
      EXPECT_TRUE(of_write.status == IBV_WC_GENERAL_ERR || of_write.status == IBV_WC_REM_OP_ERR)
          << ibv_wc_status_str(of_write.status);
      EXPECT_EQ(of_add.status, IBV_WC_WR_FLUSH_ERR);
      EXPECT_EQ(far.memory.read(0, 128), std::vector<uint8_t>(128)) << "nothing has happened";
    } else {
      EXPECT_EQ(of_write.status, IBV_WC_SUCCESS);
      EXPECT_EQ(of_add.status, IBV_WC_SUCCESS);
      EXPECT_EQ(far.memory.read(0, 1)[0], 1);
    }
  }
}

softverbs::GpuServiceTable& find_requests(const QueuePair& of_owner) {
  uint8_t* const tables = find_tables(softverbs::get_qp_slot(of_owner.qp->qp_num));
  return *reinterpret_cast<softverbs::GpuServiceTable*>(tables + softverbs::kGpuService);
}

// Waits until as many of the owner's requests are taken.
void expect_requests(const QueuePair& of_owner, ptrdiff_t count) {
  const auto& requests = find_requests(of_owner).requests;
  const auto is_taken = [](const softverbs::GpuRequest& request) { return request.word.load() != 0; };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  ptrdiff_t taken = -1;
  while (taken != count && std::chrono::steady_clock::now() < deadline) {
    usleep(1000);
    taken = std::count_if(std::begin(requests), std::end(requests), is_taken);
  }
  EXPECT_EQ(taken, count);
}

// A process that writes what is held, and adds behind it; then does the rest. It tells whether a stand-in for
// CUDA is there, and when it has posted both.
void hold_add(int socket, uint64_t operand, const std::function<void(Node&)>& do_rest) {
  start_cuda();
  auto [node, pair] = Connected(socket);
  const auto far = hear<RemoteMemory>(socket);
  Registered near(node, Kind::kDevice, 0);
  Buffer result(node, 8);
  const bool can_hold = hold_copies(true);
  tell(socket, can_hold);
  if (!can_hold) return;
  ASSERT_EQ(post_write_and_add(pair, near.piece(0, 512), far + 512, result, far, operand), 0);
  tell(socket, true);
  do_rest(node);
}

// A process that dies while its add waits for the write before it: others add on, and to a word that the
// owner has written meanwhile.
void drive_add_of_the_dead() {
  Child dying([](int socket) { hold_add(socket, 100, [](Node&) { pause(); }); });
  Node node;
  QueuePair first(node), second(node), of_dying(node);
  Registered far(node, Kind::kDevice, 0);
  far.memory.clear(2048);
  Buffer result(node, 8);
  meet(first, second);
  meet(dying.socket(), of_dying);
  tell(dying.socket(), far.remote());
  if (!hear<bool>(dying.socket())) return;  // a real driver
  hear<bool>(dying.socket());
  expect_requests(first, is_over_wire() ? 0 : 1);
  dying.kill();
  expect_requests(first, 0);
  for (uint64_t round = 0; round < 4; ++round) {
    ASSERT_EQ(Send(IBV_WR_ATOMIC_FETCH_AND_ADD, 1).from(result, 0, 8).add(1, far.remote()).run(first),
              IBV_WC_SUCCESS);
    EXPECT_EQ(result.word(), round < 2 ? round : round - 2);
    if (round == 1) far.memory.clear(8);
  }
}

// A word that has the value which the device takes for one that has not come.
void drive_unlikely_word(Kind kind) {
  constexpr uint64_t kUnlikely = 0xb5ad4eceda1ce2a9;  // its kNotLoaded
  auto [node, first, second] = ConnectedPair();
  Registered near(node, kind, count_gpus() - 1), far(node, kind, 0);
  Buffer value(node, 8), result(node, 8);
  memcpy(value.data(), &kUnlikely, 8);
  for (const auto* memory : {&near, &far}) {
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(value, 0, 8).to(memory->remote()).run(first), IBV_WC_SUCCESS);
  }
  ASSERT_EQ(post_write_and_add(first, near.piece(0, 8), far.remote(64), result, far.remote()), 0);
  for (const ibv_wc& completion : node.wait_completions(2)) ASSERT_EQ(completion.status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(result.data(), &kUnlikely, 8), 0);
  EXPECT_EQ(far.memory.read(64, 8), near.memory.read(0, 8));
}

// A word is written, and added to right after it.
void drive_adds_to_written_words(Kind kind) {
  constexpr uint64_t kRounds = 24;
  auto [node, first, second] = ConnectedPair();
  Registered near(node, kind, count_gpus() - 1), far(node, kind, 0);
  Buffer results(node, 8 * kRounds);
  far.memory.clear(8);
  near.memory.clear(8);
  near.memory.fill(100, 1);
  for (uint64_t i = 0; i < kRounds; ++i) {
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, i).from(near.piece(0, 8)).to(far.remote()).post(first), 0);
    ASSERT_EQ(Send(IBV_WR_ATOMIC_FETCH_AND_ADD, i).from(results, 8 * i, 8).add(7, far.remote()).post(first),
              0);
  }
  ASSERT_EQ(node.wait_completions(2 * kRounds).size(), 2 * kRounds);
  for (uint64_t i = 0; i < kRounds; ++i) EXPECT_EQ(results.data()[8 * i], 100) << "add " << i;
}

uint32_t read_expected_packet(const QueuePair& pair) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  EXPECT_EQ(ibv_query_qp(pair.qp, &attributes, IBV_QP_RQ_PSN, &init), 0);
  return attributes.rq_psn;
}

enum class Requests { kAdds, kWrites, kWritesAndAdds };

// Requests under way, all to words of their own, when one end is stopped, then the other: what the target has
// counted is what has happened to its memory, and in order.
void drive_stop(Kind far_kind, Requests requests, uint64_t completions_before, bool stops_target_first) {
  constexpr uint64_t kRequests = 48, kStride = 64;
  Node node;
  QueuePair near_end(node), far_end(node);
  meet(near_end, far_end);
  Registered far(node, far_kind, 0);
  Buffer source(node, 8 * kRequests), found(node, kStride * kRequests);
  Registered near(node, far_kind, 0);  // what goes with an add comes from a GPU too
  far.memory.clear(kStride * kRequests);
  near.memory.fill(1, 1), near.memory.clear(8), near.memory.fill(1, 1);
  for (uint64_t i = 0; i < source.size(); i += 8) source.data()[i] = 1;
  const uint32_t first_packet = read_expected_packet(far_end);
  for (uint64_t i = 0; i < kRequests; ++i) {
    const bool is_write =
        requests == Requests::kWrites || (requests == Requests::kWritesAndAdds && i % 2 == 0);
    Send send(is_write ? IBV_WR_RDMA_WRITE : IBV_WR_ATOMIC_FETCH_AND_ADD, i);
    send.from(source, 8 * i, 8);
    if (requests == Requests::kWritesAndAdds && i % 4 == 0)
      send.sges[0] = {near.memory.address(), 8, near.mr->lkey};
    const uint64_t word = far.memory.address() + kStride * i;
    if (is_write) {
      send.to(word, far.mr->rkey);
    } else {
      send.request.wr.atomic = {word, 1, 0, far.mr->rkey};
    }
    ASSERT_EQ(send.post(near_end), 0);
  }
  for (uint64_t i = 0; i < completions_before; ++i) ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  ASSERT_EQ((stops_target_first ? far_end : near_end).to_state(IBV_QPS_ERR), 0);
  ASSERT_EQ((stops_target_first ? near_end : far_end).to_state(IBV_QPS_ERR), 0);
  const uint32_t counted = (read_expected_packet(far_end) - first_packet) & 0xffffff;
  const int left = static_cast<int>(kRequests - completions_before);
  ASSERT_EQ(node.wait_completions(left).size(), static_cast<size_t>(left));
  QueuePair reads(node), source_of_reads(node);
  meet(reads, source_of_reads);
  ASSERT_EQ(Send(IBV_WR_RDMA_READ, 0).from(found, 0, found.size()).to(far.remote()).run(reads),
            IBV_WC_SUCCESS);
  EXPECT_EQ(counted, (read_expected_packet(far_end) - first_packet) & 0xffffff) << "it changed when stopped";
  for (uint64_t i = 0; i < kRequests; ++i)
    EXPECT_EQ(found.data()[kStride * i], i < counted ? 1 : 0) << "request " << i << " of " << counted;
}

// Both ends of a connection fail while writes of both are under way: neither waits for the other in the
// thread that completes the other's.
void drive_failures_at_both_ends(Kind kind) {
  constexpr uint64_t kRequests = 48, kStride = 64;
  Node node;
  QueuePair near(node), far_end(node);
  meet(near, far_end);
  Registered memory(node, kind, 0);
  Buffer source(node, 8);
  for (uint64_t i = 0; i < kRequests; ++i) {
    for (QueuePair* pair : {&near, &far_end}) {
      ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, i).from(source, 0, 8).to(memory.remote(kStride * i)).post(*pair), 0);
    }
  }
  EXPECT_EQ(node.wait_completions(2 * kRequests).size(), 2 * kRequests);
}

// An add behind a put whose copy does not begin: adds to other words of the same process go on. `is_behind`:
// a put of another queue pair is on the lane before.
void drive_add_beside_held_copies(bool is_behind) {
  Child child([](int socket) {
    start_cuda();
    Node node;
    QueuePair pairs[3] = {node, node, node};
    for (QueuePair& pair : pairs) meet(socket, pair);
    Registered target(node, Kind::kDevice, 0), word(node, Kind::kPieced, 0), host(node, Kind::kPageable, 0);
    word.memory.clear(64);
    host.memory.clear(64);
    for (const Registered* memory : {&target, &word, &host}) tell(socket, memory->remote());
    hear<bool>(socket);
  });
  run_apart([&] {
    Node node, node_of_other;
    QueuePair first(node), second(node), other(node_of_other);
    for (QueuePair* pair : {&first, &second, &other}) meet(child.socket(), *pair);
    const auto target = hear<RemoteMemory>(child.socket()), word = hear<RemoteMemory>(child.socket()),
               host = hear<RemoteMemory>(child.socket());
    Registered near(node, Kind::kDevice, 0);
    Buffer result(node, 8), result_of_other(node_of_other, 8);
    const auto put = [&](QueuePair& pair) {
      return Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, 8)).to(target).post(pair);
    };
    const auto add = [&](QueuePair& pair, const RemoteMemory& to, const Buffer& former) {
      return Send(IBV_WR_ATOMIC_FETCH_AND_ADD, 2).from(former, 0, 8).add(1, to).post(pair);
    };
    if (!hold_copies(true)) return tell(child.socket(), true);  // a real driver
    if (is_behind) {
      ASSERT_EQ(put(first), 0);
    }
    ASSERT_EQ(put(second), 0);
    ASSERT_EQ(add(second, word, result), 0);
    usleep(100'000);  // the worker comes to the add
    auto posted = std::async(std::launch::async, [&] { return add(other, host, result_of_other); });
    EXPECT_EQ(posted.wait_for(std::chrono::seconds(10)), std::future_status::ready)
        << "the add before holds the turn";
    if (is_over_wire()) {  // a put that is held holds its link up
      EXPECT_TRUE(hold_copies(false));
    }
    EXPECT_EQ(posted.get(), 0);
    EXPECT_EQ(node_of_other.wait_completion().status, IBV_WC_SUCCESS);
    if (!is_over_wire()) {
      ASSERT_EQ(Send(IBV_WR_RDMA_READ, 3).from(result_of_other, 0, 8).to(word).run(other), IBV_WC_SUCCESS);
      EXPECT_EQ(result_of_other.data()[0], 0) << "the add has overtaken the put";
      EXPECT_TRUE(hold_copies(false));
    }
    for (const ibv_wc& completion : node.wait_completions(is_behind ? 3 : 2))
      EXPECT_EQ(completion.status, IBV_WC_SUCCESS);
    ASSERT_EQ(add(second, word, result), 0);
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    EXPECT_EQ(result.word(), 1) << "each add took effect once";
    tell(child.socket(), true);
  });
}

// A queue pair that drains its send queue completes what is under way.
void drive_drain(Kind kind, uint32_t write_bytes) {
  auto [node, first, second] = ConnectedPair();
  Registered near(node, kind, count_gpus() - 1), far(node, kind, 0);
  Buffer result(node, 8);
  near.memory.fill(1, write_bytes);
  far.memory.clear(4096);
  for (uint8_t round = 0; round < 3; ++round) {
    hold_copies(true);
    ASSERT_EQ(post_write_and_add(first, near.piece(0, write_bytes), far.remote(512), result, far.remote()),
              0);
    usleep(50'000);  // the worker begins both
    ASSERT_EQ(first.to_state(IBV_QPS_SQD), 0);
    usleep(10'000);
    hold_copies(false);
    usleep(50'000);
    ASSERT_EQ(first.to_state(IBV_QPS_RTS), 0);
    for (const ibv_wc& completion : node.wait_completions(2)) ASSERT_EQ(completion.status, IBV_WC_SUCCESS);
    EXPECT_EQ(result.data()[0], round);
    EXPECT_EQ(far.memory.read(512, write_bytes), near.memory.read(0, write_bytes));
  }
}

// A queue pair that is reset forgets what is under way, without an error: nobody is told of one.
void drive_reset(Kind kind) {
  Node node;
  ibv_srq_init_attr shared{};
  shared.attr = {16, 1, 0};
  ibv_srq* const srq = ibv_create_srq(node.pd, &shared);
  ASSERT_NE(srq, nullptr);
  {
    QueuePair first(node, {.srq = srq}), second(node);
    meet(first, second);
    Registered near(node, kind, count_gpus() - 1), far(node, kind, 0);
    Buffer result(node, 8);
    far.memory.clear(4096);
    hold_copies(true);
    ASSERT_EQ(post_write_and_add(first, near.piece(0, 512), far.remote(512), result, far.remote()), 0);
    usleep(50'000);  // the worker begins both
    const auto released = std::async(std::launch::async, [] {
      usleep(50'000);
      hold_copies(false);
    });
    ASSERT_EQ(first.to_state(IBV_QPS_RESET), 0);
    pollfd events{node.context->async_fd, POLLIN, 0};
    EXPECT_EQ(poll(&events, 1, 100), 0);
    EXPECT_EQ(first.query_state(), IBV_QPS_RESET);
  }
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

// What is fenced begins once the results before it are there: here it sends one of them.
void drive_fenced_write(Kind kind) {
  constexpr uint64_t kRounds = 24;
  auto [node, first, second] = ConnectedPair();
  Registered far(node, kind, 0, IBV_ACCESS_RELAXED_ORDERING);
  Buffer result(node, 8);
  far.memory.clear(128);
  for (uint8_t round = 0; round < kRounds; ++round) {
    result.fill(99);
    Send add(IBV_WR_ATOMIC_FETCH_AND_ADD, 1), write(IBV_WR_RDMA_WRITE, 2, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
    add.from(result, 0, 8).add(1, far.remote());
    write.from(result, 0, 8).to(far.remote(64));
    ASSERT_EQ(post_together(first, {&add, &write}), 0);
    for (const ibv_wc& completion : node.wait_completions(2)) ASSERT_EQ(completion.status, IBV_WC_SUCCESS);
    EXPECT_EQ(result.data()[0], round);
    EXPECT_EQ(far.memory.read(64, 1)[0], round);
  }
}

// A read of one GPU's memory, and a fenced write of what it brings to another GPU: these are copies of two
// streams.
void drive_write_of_what_was_read(Kind kind) {
  constexpr size_t kLength = 1 << 20;
  auto [node, first, second] = ConnectedPair();
  Registered near(node, Kind::kPinned, 0), one(node, kind, 0), other(node, kind, count_gpus() - 1);
  for (uint8_t round = 1; round < 12; ++round) {
    one.memory.fill(round, kLength);
    Send read(IBV_WR_RDMA_READ, 1), write(IBV_WR_RDMA_WRITE, 2, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
    read.from(near.piece(0, kLength)).to(one.remote());
    write.from(near.piece(0, kLength)).to(other.remote());
    ASSERT_EQ(post_together(first, {&read, &write}), 0);
    for (const ibv_wc& completion : node.wait_completions(2)) ASSERT_EQ(completion.status, IBV_WC_SUCCESS);
    EXPECT_TRUE(other.memory.matches(round, 0, kLength));
  }
}

// An add that was begun, and may not happen any more: its word belongs to another registration now.
void drive_add_to_former_memory() {
  Child late([](int socket) {
    hold_add(socket, 100, [socket](Node& node) {
      hear<bool>(socket);
      hold_copies(false);
      const std::vector<ibv_wc> completions = node.wait_completions(2);
      ASSERT_EQ(completions.size(), 2U);
      EXPECT_NE(completions[1].status, IBV_WC_SUCCESS);
    });
  });
  Node node;
  QueuePair pair(node);
  TestMemory memory(Kind::kDevice, 0, 4096);
  memory.clear();
  ibv_mr* const mr = ibv_reg_mr(node.pd, reinterpret_cast<void*>(memory.address()), 4096, kAllAccess);
  ASSERT_NE(mr, nullptr);
  meet(late.socket(), pair);
  tell(late.socket(), RemoteMemory{memory.address(), mr->rkey});
  const bool can_hold = hear<bool>(late.socket());
  if (can_hold) {
    hear<bool>(late.socket());
    expect_requests(pair, is_over_wire() ? 0 : 1);
  }
  EXPECT_EQ(ibv_dereg_mr(mr), 0);  // after a while it does not wait for the other any more
  if (!can_hold) return;
  ibv_mr* const again = ibv_reg_mr(node.pd, reinterpret_cast<void*>(memory.address()), 4096, kAllAccess);
  tell(late.socket(), true);
  late.join();
  EXPECT_EQ(memory.read(0, 8), std::vector<uint8_t>(8));
  EXPECT_EQ(ibv_dereg_mr(again), 0);
}

// Requests of processes that have died are free again, also while an owner has something to do without a
// pause, as with an add that waits.
void drive_requests_of_the_dead() {
  Child waiting([](int socket) {
    hold_add(socket, 1, [socket](Node& node) {
      hear<bool>(socket);
      hold_copies(false);
      for (const ibv_wc& completion : node.wait_completions(2)) EXPECT_EQ(completion.status, IBV_WC_SUCCESS);
    });
  });
  Node node;
  QueuePair pair(node);
  Registered far(node, Kind::kDevice, 0);
  meet(waiting.socket(), pair);
  tell(waiting.socket(), far.remote());
  if (!hear<bool>(waiting.socket())) return;  // a real driver
  hear<bool>(waiting.socket());
  const ptrdiff_t count_waiting = is_over_wire() ? 0 : 1;
  expect_requests(pair, count_waiting);
  // As they are when a process has died before it took the answer, or before it asked: an earlier owner of
  // our slot, say.
  const uint8_t* const tables = find_tables(softverbs::get_qp_slot(pair.qp->qp_num));
  const auto& header = *reinterpret_cast<const softverbs::SegmentHeader*>(tables);
  const uint64_t claimer = uint64_t{header.slot} << 12 | ((header.generation - 1) & 0xfff);
  constexpr uint64_t kIsClaimed = 1, kIsDone = 3;  // states of a request: gpu_service.cc
  for (uint32_t i = 0; i < softverbs::kGpuCopies; ++i)
    find_requests(pair).requests[i].word.store(claimer << 8 | (i % 2 == 0 ? kIsClaimed : kIsDone));
  expect_requests(pair, count_waiting);
  tell(waiting.socket(), true);
  waiting.join();
}

// An owner that ends while adds to its memory are under way, also behind writes: they fail, and nothing
// waits.
void drive_end_of_owner(bool is_killed, int round) {
  Child owner([](int socket) {
    start_cuda();
    Node node;
    QueuePair pairs[3] = {node, node, node};
    for (QueuePair& pair : pairs) meet(socket, pair);
    Registered far(node, Kind::kDevice, 0);
    tell(socket, far.remote());
    hear<bool>(socket);
    exits_at_work = true;
    exit(0);
  });
  run_apart([&] {
    Node node;
    QueuePair pairs[3] = {node, node, node};
    for (QueuePair& pair : pairs) meet(owner.socket(), pair);
    const auto far = hear<RemoteMemory>(owner.socket());
    Registered near(node, Kind::kDevice, 0);
    Buffer result(node, 8);
    uint32_t ended = 0, posted = 0;
    bool is_told = false;
    for (int i = 0; ended != 3; ++i) {
      if (!is_told && i > round * 3) {
        is_told = true;
        if (is_killed)
          kill(owner.pid(), SIGKILL);
        else
          tell(owner.socket(), true);
      }
      for (QueuePair& pair : pairs) {
        if (pair.query_state() != IBV_QPS_RTS) continue;
        ASSERT_EQ(post_write_and_add(pair, near.piece(0, &pair == pairs ? 512U : 8U), far + 512, result, far),
                  0);
        posted += 2;
      }
      const auto completions = node.wait_completions(static_cast<int>(posted));
      ASSERT_EQ(completions.size(), posted);
      posted = 0;
      ended = 0;
      for (QueuePair& pair : pairs) ended += pair.query_state() == IBV_QPS_ERR ? 1 : 0;
    }
  });
  if (is_killed) owner.kill();  // it is, already
}

// More queue pairs than the owner has room for the adds of, each behind a write; all to one word.
void drive_many_adds(Kind kind) {
  constexpr uint64_t kPairs = 12, kRounds = 12;
  Node node;
  Registered near(node, kind, count_gpus() - 1), far(node, kind, 0, IBV_ACCESS_RELAXED_ORDERING);
  near.memory.fill(1, 64);
  far.memory.clear(4096);
  Buffer results(node, 8 * kPairs * kRounds);
  std::vector<std::unique_ptr<QueuePair>> pairs;
  for (uint64_t i = 0; i < kPairs; ++i) {
    pairs.push_back(std::make_unique<QueuePair>(node));
    pairs[i]->connect(pairs[i]->address());
  }
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (uint64_t i = 0; i < kPairs; ++i) {
      Send write(IBV_WR_RDMA_WRITE, i, 0), add(IBV_WR_ATOMIC_FETCH_AND_ADD, i);
      write.from(near.piece(0, 16)).to(far.remote(64 * (1 + i)));
      add.from(results, 8 * (round * kPairs + i), 8).add(1, far.remote());
      ASSERT_EQ(post_together(*pairs[i], {&write, &add}), 0);
    }
  }
  for (uint64_t i = 0; i < kPairs * kRounds; ++i) ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  std::vector<uint64_t> before(kPairs * kRounds);
  memcpy(before.data(), results.data(), results.size());
  std::sort(before.begin(), before.end());
  for (uint64_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i], i);
}

// A process that is killed while it writes and adds, and another that adds to the same word: a write that
// goes with an add has happened if the add has, and no add of the other is lost.
void drive_killed(Kind kind, useconds_t round) {
  Child dying([=](int socket) {
    start_cuda();
    auto [node, pair] = Connected(socket);
    const auto far = hear<RemoteMemory>(socket);
    Buffer source(node, 16), result(node, 8);
    tell(socket, true);
    for (uint64_t i = 1;; ++i) {
      memcpy(source.data(), &i, 8);
      Send write(IBV_WR_RDMA_WRITE, 1), add(IBV_WR_ATOMIC_FETCH_AND_ADD, 2);
      write.from(source, 0, 8).to(far + 64);
      add.from(result, 0, 8).request.wr.atomic = {far.address, uint64_t{1} << 32, 0, far.rkey};
      ASSERT_EQ(post_together(pair, {&write, &add}), 0);
      for (const ibv_wc& completion : node.wait_completions(2)) ASSERT_EQ(completion.status, IBV_WC_SUCCESS);
    }
  });
  Node node;
  QueuePair first(node), second(node), of_dying(node);
  Registered far(node, kind, 0);
  far.memory.clear(2048);
  Buffer result(node, 8);
  meet(first, second);
  meet(dying.socket(), of_dying);
  tell(dying.socket(), far.remote());
  hear<bool>(dying.socket());
  uint64_t adds = 0, word = 0, written = 0;
  const auto add_one = [&] {
    ASSERT_EQ(Send(IBV_WR_ATOMIC_FETCH_AND_ADD, 1).from(result, 0, 8).add(1, far.remote()).run(first),
              IBV_WC_SUCCESS);
    word = result.word();
    EXPECT_EQ(word & UINT32_MAX, adds);
    ++adds;
  };
  for (int i = 0; i < 8; ++i) add_one();
  usleep(90 * round);
  dying.kill();
  expect_requests(first, 0);
  add_one();
  written = far.memory.read_word(64);
  // Over the wire they go one by one: the last add may never have left.
  const uint64_t most_alone = is_over_wire() ? 1 : 0;
  EXPECT_GE(written, word >> 32);
  EXPECT_LE(written, (word >> 32) + most_alone);
}

// GPU memory that cannot be served is not registered; once there is memory for that, it is.
void drive_owner_without_memory() {
  auto [node, first, second] = ConnectedPair();
  TestMemory memory(Kind::kDevice, 0, 4096);
  has_memory_for_requests = false;
  EXPECT_EQ(ibv_reg_mr(node.pd, reinterpret_cast<void*>(memory.address()), 4096, kAllAccess), nullptr);
  has_memory_for_requests = true;
  Registered far(node, Kind::kDevice, 0);
  Buffer result(node, 8);
  far.memory.clear(8);
  ASSERT_EQ(Send(IBV_WR_ATOMIC_FETCH_AND_ADD, 1).from(result, 0, 8).add(1, far.remote()).post(first), 0);
  EXPECT_EQ(node.wait_completion(10'000).status, IBV_WC_SUCCESS);
}

using GpuOwnerTest = WithGpu<::testing::Test>;
using GpuTurnTest = WithGpu<::testing::Test>;
using GpuWriteTest = WithGpu<::testing::Test>;

TEST_F(GpuOwnerTest, RefusesMemoryThatItCannotServe) {
  run_apart([] { drive_owner_without_memory(); });
}

class GpuWordTest : public WithGpu<::testing::TestWithParam<Kind>> {};

TEST_P(GpuWordTest, ManyAddsWaitForRoom) {
  run_apart([] { drive_many_adds(GetParam()); });
}

TEST_F(GpuOwnerTest, AddsFailWhenItEnds) {
  for (const bool is_killed : {true, false})
    for (int round = 0; round < 8 && !::testing::Test::HasFailure(); ++round)
      drive_end_of_owner(is_killed, round);
}

TEST_F(GpuOwnerTest, AnAddOfTheKilledHappensOnceOrNot) {
  for (useconds_t round = 0; round < 12 && !::testing::Test::HasFailure(); ++round)
    run_apart([=] { drive_killed(Kind::kDevice, round); });
}

TEST_P(GpuWordTest, AddsToWords) {
  run_apart([] { drive_adds(GetParam()); });
}

TEST_P(GpuWordTest, AddsComeAfterTheWritesBeforeThem) {
  run_apart([] {
    drive_adds_behind_writes(GetParam());
    drive_adds_to_written_words(GetParam());
  });
}

TEST_P(GpuWordTest, ShortWritesComeBeforeTheAddsBehindThem) {
  run_apart([] {
    for (const uint64_t bytes : {8, 24, 32, 40, 12}) {
      for (const uint64_t shift : {0, 4}) {
        for (const bool is_from_host : {false, true}) {
          SCOPED_TRACE(std::to_string(bytes) + " bytes at " + std::to_string(shift) +
                       (is_from_host ? " from the host" : ""));
          drive_short_writes(GetParam(), {bytes, shift, is_from_host});
        }
      }
    }
  });
}

TEST_P(GpuWordTest, NothingHappensIfCudaRefusesToLoad) {
  if (GetParam() == Kind::kPageable || GetParam() == Kind::kPinned) return;
  run_apart([] {
    for (const bool is_from_host : {false, true}) drive_refused_loads(GetParam(), is_from_host);
  });
}

TEST_F(GpuOwnerTest, AnAddOfTheDeadHoldsNothingUp) {
  run_apart([] { drive_add_of_the_dead(); });
}

TEST_P(GpuWordTest, WordsMayHaveAnyValue) {
  run_apart([] { drive_unlikely_word(GetParam()); });
}

TEST_P(GpuWordTest, DrainingCompletesWhatIsUnderWay) {
  run_apart([] {
    for (const uint32_t bytes : {8, 512}) drive_drain(GetParam(), bytes);
  });
}

TEST_P(GpuWordTest, ResettingIsNoError) {
  run_apart([] { drive_reset(GetParam()); });
}

TEST_P(GpuWordTest, FencedWritesSendTheResultsBeforeThem) {
  run_apart([] {
    drive_fenced_write(GetParam());
    drive_write_of_what_was_read(GetParam());
  });
}

TEST_F(GpuOwnerTest, RequestsOfTheDeadAreFreeWhileItWorks) {
  run_apart([] { drive_requests_of_the_dead(); });
}

TEST_F(GpuOwnerTest, NoAddChangesFormerMemory) {
  run_apart([] { drive_add_to_former_memory(); });
}

TEST_P(GpuWordTest, CountsWhatIsCarriedOut) {
  run_apart([] {
    for (const Requests requests : {Requests::kAdds, Requests::kWrites, Requests::kWritesAndAdds}) {
      for (const bool stops_target_first : {true, false}) {
        for (uint64_t before = 0; before < 24 && !HasFailure(); ++before) {
          SCOPED_TRACE("kind " + std::to_string(static_cast<int>(requests)) + " of requests, stopped after " +
                       std::to_string(before) +
                       (stops_target_first ? ", target first" : ", requester first"));
          drive_stop(GetParam(), requests, before, stops_target_first);
        }
      }
    }
  });
}

TEST_P(GpuWordTest, BothEndsFail) {
  run_apart([] {
    setenv("SOFTVERBS_FAULTS", "fail status=RETRY_EXC work=done nth=9 per=qp", 1);
    drive_failures_at_both_ends(GetParam());
  });
}

TEST_F(GpuTurnTest, AnAddDoesNotKeepItWhileCopiesDoNotEnd) {
  for (const bool is_behind : {false, true}) {
    SCOPED_TRACE(is_behind ? "behind another queue pair's" : "behind its own only");
    drive_add_beside_held_copies(is_behind);
  }
}

TEST_F(GpuWriteTest, SmallOnesToRelaxedMemoryGoInBatches) {
  run_apart([] { drive_relaxed_writes(true); });
}

TEST_F(GpuWriteTest, OneThatContinuesAnotherStaysBehindAllBeforeIt) {
  run_apart([] { drive_continued_write(); });
}

TEST_F(GpuWriteTest, OthersGoOneByOne) {
  run_apart([] { drive_relaxed_writes(false); });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuWordTest, ::testing::ValuesIn(kKinds),
                         [](const auto& test) { return std::string(get_name(test.param)); });

}  // namespace
}  // namespace verbena::softverbs_test
