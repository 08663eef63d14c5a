#include "nccl/rma/host/rank.h"

#include <dlfcn.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "common/net_plugin.h"
#include "common/table.h"
#include "nccl/rma/host/gpu_words.h"
#include "nccl/rma/proxy.h"

namespace verbena::nccl::testing {

namespace {

using Kind = Descriptor::Kind;

constexpr uint64_t kSlots = GinProxy::kDepth;  // a slot is written again once its put is over
constexpr uint64_t kGetEvery = 61, kAddEvery = 3, kSplitEvery = 5;
constexpr size_t kDescriptors = 4;  // most of a message
constexpr size_t kOwnBytes = 512;   // of what gets bring

struct Stop {};  // the report says why

std::atomic<uint64_t> failed_queue_pairs{0};
bool is_verbose = false;

void log_line(abi::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (const char* const found = std::strstr(text, "queue pairs failed ")) {
    failed_queue_pairs += std::strtoull(found + std::strlen("queue pairs failed "), nullptr, 10);
  }
  if (is_verbose || level == abi::kLogWarn)
    std::fprintf(stderr, "[%d] %s\n", static_cast<int>(getpid()), text);
}

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

class Rank {
 public:
  Rank(const RunOptions& options, uint32_t rank, Meeting& meeting)
      : options_(options), rank_(rank), meeting_(meeting), report_(meeting.reports[rank]) {
    is_verbose = options.is_verbose;
    library_ = dlopen(options.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) stop(dlerror());
    plugin_ = tools::adapt_rma_table(library_, options.table);
    if (plugin_ == nullptr) stop("the library has no such table");
  }

  void play(Figures* figures) {
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      join();
      switch (options_.work) {
        case Work::kCount:
          count();
          break;
        case Work::kLatency:
          measure_latency(figures);
          break;
        case Work::kRate:
          measure_rate(figures);
          break;
      }
      leave();
    }
    report_.failed_queue_pairs = failed_queue_pairs.load();
  }

 private:
  struct Peer {
    std::vector<uint64_t> sent, seen;  // by context
    bool is_lost = false;
  };

  [[noreturn]] void stop(const std::string& problem) {
    std::snprintf(report_.problem.data(), report_.problem.size(), "%s", problem.c_str());
    throw Stop();
  }
  void check(const char* call, abi::Result result) {
    if (result != abi::kSuccess)
      stop(std::string(call) + " failed with " + std::to_string(static_cast<int>(result)));
  }
  void meet(const std::function<void()>& meanwhile = {}) {
    if (!meeting_.meet(options_.ranks, &times_, options_.seconds, meanwhile)) stop("others did not come");
  }

  // --- As NCCL makes a communicator. A device of several rails is made through the table of messages, as by
  // NCCL.
  int choose_device() {
    if (options_.rails == 1) {
      int count = 0;
      check("devices", plugin_->devices(&count));
      return static_cast<int>(rank_) % count;
    }
    if (net_ == nullptr) {
      net_library_ = std::make_unique<tools::PluginLibrary>(options_.plugin);
      net_ = net_library_->adapt(11);
      net_->init(&log_line);
      std::vector<int> members(options_.rails);
      for (uint32_t rail = 0; rail < options_.rails; ++rail) members[rail] = static_cast<int>(rail);
      device_ = net_->make_virtual_device(members);
    }
    return device_;
  }

  void join() {
    check("init", plugin_->init(&init_, 1, &log_line));
    void* listen_comm = nullptr;
    check("listen", plugin_->listen(init_, choose_device(), meeting_.handles[rank_].data(), &listen_comm));
    meet();
    std::vector<void*> handles;
    for (uint32_t peer = 0; peer < options_.ranks; ++peer) handles.push_back(meeting_.handles[peer].data());
    check("connect", plugin_->connect(nullptr, handles.data(), static_cast<int>(options_.ranks),
                                      static_cast<int>(rank_), listen_comm, &target_.communicator));
    check("closeListen", plugin_->close_listen(listen_comm));
    check("createContext", plugin_->create_context(target_.communicator, static_cast<int>(options_.contexts),
                                                   1, &target_.context));
    count_contexts_ = plugin_->has_contexts() ? options_.contexts : 1;
    slot_bytes_ = std::max(8U, (options_.bytes + 7) / 8 * 8);
    const size_t payload = size_t{options_.ranks} * count_contexts_ * kSlots * slot_bytes_;
    sources_.assign(payload / 8, 0);
    targets_.assign(payload / 8, 0);
    own_.assign((1 + size_t{options_.ranks} * count_contexts_) * kOwnBytes / 8, 0);
    std::fill_n(own_.begin(), kOwnBytes / 8, value(rank_ + 1));
    const size_t words = size_t{options_.ranks} * count_contexts_ + 1;  // and a common one
    words_.assign(options_.has_gpu_words ? 0 : words, 0);
    gpu_words_ = options_.has_gpu_words ? std::make_unique<GpuWords>(rank_, words) : nullptr;
    source_ = register_memory(sources_);
    target_region_ = register_memory(targets_);
    word_region_ = gpu_words_ == nullptr ? register_memory(words_)
                                         : register_memory(gpu_words_->address(), words * 8, abi::kPtrCuda);
    own_region_ = register_memory(own_);
    proxy_ = std::make_unique<GinProxy>(*plugin_, target_, count_contexts_, options_.ranks);
    peers_.assign(options_.ranks,
                  {std::vector<uint64_t>(count_contexts_), std::vector<uint64_t>(count_contexts_), false});
    meet();
  }
  void* register_memory(std::vector<uint64_t>& memory) {
    return register_memory(memory.data(), memory.size() * 8, abi::kPtrHost);
  }
  void* register_memory(void* memory, size_t bytes, int kind) {
    const auto made = plugin_->register_memory(target_.communicator, memory, bytes, kind);
    check("regMrSym", made.result);
    return made.mhandle;
  }
  void leave() {
    report_.calls += proxy_->count_calls();
    proxy_.reset();
    check("destroyContext", plugin_->destroy_context(target_.context));
    for (void* region : {source_, target_region_, word_region_, own_region_})
      check("deregMrSym", plugin_->deregister(target_.communicator, region));
    check("closeColl", plugin_->close(target_.communicator));
    check("finalize", plugin_->finalize(init_));
  }

  // --- Places. A payload of this rank lies at the peer where its rank, context and slot say.
  size_t place(uint32_t owner, uint32_t context, uint64_t message) const {
    return ((size_t{owner} * count_contexts_ + context) * kSlots + message % kSlots) * slot_bytes_;
  }
  size_t word(uint32_t sender, uint32_t context) const {
    return (size_t{sender} * count_contexts_ + context) * 8;
  }
  size_t fetched(uint32_t peer, uint32_t context) const {
    return (1 + size_t{peer} * count_contexts_ + context) * kOwnBytes;
  }
  size_t common_word() const { return size_t{options_.ranks} * count_contexts_ * 8; }
  uint64_t read_word(size_t offset) {
    if (gpu_words_ != nullptr) return gpu_words_->read(offset / 8);
    return std::atomic_ref(words_[offset / 8]).load(std::memory_order_acquire);
  }
  uint32_t length(uint32_t context, uint64_t message) const {
    return 8 * (1 + static_cast<uint32_t>(mix(message * 64 + context) % (slot_bytes_ / 8)));
  }
  static uint64_t value(uint64_t message) { return mix(message) >> 1; }

  uint64_t due(uint32_t context) const {  // of each pair of ranks
    const uint64_t all = options_.messages / options_.ranks;
    return all / count_contexts_ + (context < all % count_contexts_ ? 1 : 0);
  }

  void push(uint32_t context, uint32_t peer) {
    const uint64_t message = ++peers_[peer].sent[context];
    const size_t from = place(peer, context, message), to = place(rank_, context, message);
    const uint32_t bytes = length(context, message);
    std::fill_n(&sources_[from / 8], bytes / 8, message);
    Descriptor descriptor;
    descriptor.copy = {from, source_, bytes, to, target_region_, peer};
    descriptor.add = {word(rank_, context), word_region_, 77, abi::kSignalIncrement};
    if (message % kSplitEvery == 0) {
      descriptor.kind = Kind::kPutThenSignal;
      descriptor.add.is_strong = false;
    } else {
      descriptor.kind = Kind::kPutSignal;
    }
    proxy_->push(context, peer, descriptor);
    if (message % kAddEvery == 0) {  // a value to the common word
      Descriptor add;
      add.kind = Kind::kPutSignal;
      add.copy = {0, nullptr, 0, 0, nullptr, peer};
      add.add = {common_word(), word_region_, value(message), abi::kSignalAdd};
      proxy_->push(context, peer, add);
    }
    if (message % kGetEvery == 0 && plugin_->has_contexts()) {
      Descriptor get;
      get.kind = Kind::kGet;
      get.copy = {fetched(peer, context), own_region_, kOwnBytes, 0, own_region_, peer};
      proxy_->push(context, peer, get);
      get.kind = Kind::kFlush;
      proxy_->push(context, peer, get);
    }
  }

  // Whoever sees a word's count sees the puts before it: the payload of the last of them, or of a later one
  // in its place.
  void look(uint32_t sender, uint32_t context) {
    const uint64_t count = read_word(word(sender, context));
    if (count == peers_[sender].seen[context]) return;
    bool is_right = count > peers_[sender].seen[context] && count <= due(context);
    const size_t at = place(sender, context, count) / 8;
    for (uint32_t i = 0; is_right && i < length(context, count) / 8; ++i) {
      const uint64_t found = std::atomic_ref(targets_[at + i]).load(std::memory_order_relaxed);
      is_right = found >= count && found % kSlots == count % kSlots;
      if (!is_right) {
        std::fprintf(stderr,
                     "rank %u: signal %lu of rank %u, context %u, is there, but word %u of %u is of %lu\n",
                     rank_, count, sender, context, i, length(context, count) / 8, found);
      }
    }
    if (!is_right) ++report_.wrong;
    peers_[sender].seen[context] = count;
  }
  void look_at_all() {
    for (uint32_t sender = 0; sender < options_.ranks; ++sender)
      for (uint32_t context = 0; context < count_contexts_; ++context) look(sender, context);
  }

  bool is_over() const {
    for (uint32_t peer = 0; peer < options_.ranks; ++peer) {
      if (peers_[peer].is_lost) continue;
      for (uint32_t context = 0; context < count_contexts_; ++context)
        if (peers_[peer].sent[context] < due(context)) return false;
    }
    return proxy_->is_idle();
  }

  void note_losses() {
    for (uint32_t peer = 0; peer < options_.ranks; ++peer) {
      if (peers_[peer].is_lost || proxy_->error(peer) == abi::kSuccess) continue;
      peers_[peer].is_lost = true;
      if (static_cast<int>(peer) != options_.killed)
        stop("operations on rank " + std::to_string(peer) + " failed with " +
             std::to_string(proxy_->error(peer)));
      bool has_error = false;
      check("queryLastError", plugin_->query_last_error(target_, &has_error));
      if (!has_error) stop("queryLastError knows of no error");
      report_.lost_peers |= 1U << peer;
      report_.loss_ms = (tools::now_ns() - meeting_.death_ns.load()) / 1'000'000;
    }
  }

  bool is_open(uint32_t context, uint32_t peer) const {
    const bool is_due =
        peers_[peer].sent[context] < due(context) || static_cast<int>(peer) == options_.killed;
    return is_due && !peers_[peer].is_lost && proxy_->has_room(context, peer, kDescriptors);
  }

  void step() {
    for (uint32_t peer = 0; peer < options_.ranks; ++peer) {
      for (uint32_t context = 0; context < count_contexts_; ++context) {
        // In bursts: what the GPU has written meanwhile.
        for (int i = 0; i < 40 && is_open(context, peer); ++i) push(context, peer);
      }
    }
    proxy_->tick();
    note_losses();
    look_at_all();
    if (static_cast<int>(rank_) == options_.slow) usleep(1000);
    if (static_cast<int>(rank_) == options_.killed && peers_[rank_].sent[0] > due(0) / 2) {
      meeting_.death_ns = tools::now_ns();
      raise(SIGKILL);
    }
  }

  // A rank that dies meets nobody any more: its survivors count without it.
  void meet_survivors(uint32_t survivors) {
    if (survivors == options_.ranks) return meet([&] { proxy_->tick(); });
    report_.has_ended = true;
    const int64_t deadline_ns = tools::deadline_after_s(options_.seconds);
    for (uint32_t peer = 0; peer < options_.ranks; ++peer) {
      while (static_cast<int>(peer) != options_.killed && !meeting_.reports[peer].has_ended) {
        proxy_->tick();
        if (tools::now_ns() > deadline_ns) stop("others did not end");
      }
    }
  }

  void count() {
    const int64_t deadline_ns = tools::deadline_after_s(options_.seconds);
    const bool loses_one = options_.killed >= 0;
    while (!is_over() || (loses_one && report_.lost_peers == 0)) {
      step();
      if (tools::now_ns() > deadline_ns) stop("the time is over: " + describe());
    }
    meet_survivors(options_.ranks - (loses_one ? 1 : 0));
    for (uint32_t sender = 0; sender < options_.ranks; ++sender) {
      const bool is_dead = static_cast<int>(sender) == options_.killed;
      for (uint32_t context = 0; context < count_contexts_; ++context) {
        look(sender, context);
        report_.messages += peers_[sender].seen[context];
        if (!is_dead && read_word(word(sender, context)) != due(context)) {
          stop("rank " + std::to_string(sender) + " signalled " +
               std::to_string(read_word(word(sender, context))) + " times and not " +
               std::to_string(due(context)));
        }
      }
    }
    if (!loses_one) check_sums_and_gets();
    if (report_.wrong != 0) stop("payloads were not there when their signals were");
    meet_survivors(options_.ranks - (loses_one ? 1 : 0));
  }

  // Every rank sends every other the same values.
  void check_sums_and_gets() {
    uint64_t expected = 0;
    for (uint32_t context = 0; context < count_contexts_; ++context) {
      for (uint64_t message = kAddEvery; message <= due(context); message += kAddEvery)
        expected += value(message);
      for (uint32_t peer = 0; peer < options_.ranks; ++peer) {
        if (!plugin_->has_contexts() || due(context) < kGetEvery) continue;
        const auto* const begin = &own_[fetched(peer, context) / 8];
        if (std::count(begin, begin + kOwnBytes / 8, value(peer + 1)) != kOwnBytes / 8)
          stop("a get brought other bytes");
      }
    }
    if (read_word(common_word()) != expected * options_.ranks)
      stop("the common word is not the sum of all values");
  }

  std::string describe() const {
    std::string text;
    for (uint32_t peer = 0; peer < options_.ranks; ++peer)
      for (uint32_t context = 0; context < count_contexts_; ++context)
        text += " " + std::to_string(peers_[peer].sent[context]) + "/" +
                std::to_string(proxy_->count_consumed(context, peer));
    return "of each peer and context, sent/over:" + text;
  }

  // --- Figures.
  void ping(uint32_t peer) {
    Descriptor descriptor;
    descriptor.kind = Kind::kPutSignal;
    descriptor.copy = {place(peer, 0, 0), source_, options_.bytes, place(rank_, 0, 0), target_region_, peer};
    descriptor.add = {word(rank_, 0), word_region_, 0, abi::kSignalIncrement};
    proxy_->push(0, peer, descriptor);
  }
  void measure_latency(Figures* figures) {
    std::vector<double> samples;
    const int64_t deadline_ns = tools::deadline_after_s(options_.seconds);
    if (rank_ < 2) {
      const uint32_t peer = 1 - rank_;
      for (uint64_t turn = 1; turn <= options_.messages; ++turn) {
        const int64_t begin_ns = tools::now_ns();
        if (rank_ == 0) ping(peer);
        while (read_word(word(peer, 0)) < turn) {
          proxy_->tick();
          if (tools::now_ns() > deadline_ns) stop("the time is over");
        }
        if (rank_ == 1) ping(peer);
        if (rank_ == 0) samples.push_back(static_cast<double>(tools::now_ns() - begin_ns) * 0.5e-3);
      }
      while (!proxy_->is_idle()) proxy_->tick();
    }
    if (rank_ == 0) {
      figures->median_us = tools::compute_percentile(samples, 50);
      figures->p99_us = tools::compute_percentile(samples, 99);
    }
    meet([&] { proxy_->tick(); });
  }
  void measure_rate(Figures* figures) {
    const int64_t begin_ns = tools::now_ns(), deadline_ns = tools::deadline_after_s(options_.seconds);
    if (rank_ == 0) {
      for (uint64_t sent = 0; sent < options_.messages || !proxy_->is_idle();) {
        for (uint32_t i = 0; i < GinProxy::kBatch && sent < options_.messages && proxy_->has_room(0, 1);
             ++i, ++sent)
          ping(1);
        proxy_->tick();
        if (tools::now_ns() > deadline_ns) stop("the time is over");
      }
      figures->rate =
          static_cast<double>(options_.messages) / (static_cast<double>(tools::now_ns() - begin_ns) * 1e-9);
    }
    meet([&] { proxy_->tick(); });
    if (rank_ == 1 && read_word(word(0, 0)) != options_.messages) stop("signals are missing");
  }

  const RunOptions& options_;
  const uint32_t rank_;
  Meeting& meeting_;
  RankReport& report_;
  uint64_t times_ = 0;
  void* library_ = nullptr;
  std::unique_ptr<tools::RmaPlugin> plugin_;
  std::unique_ptr<tools::PluginLibrary> net_library_;
  std::unique_ptr<tools::NetPlugin> net_;
  int device_ = 0;

  void* init_ = nullptr;
  tools::RmaTarget target_;
  uint32_t count_contexts_ = 1, slot_bytes_ = 8;
  std::vector<uint64_t> sources_, targets_, words_, own_;
  std::unique_ptr<GpuWords> gpu_words_;  // instead of words_
  void *source_ = nullptr, *target_region_ = nullptr, *word_region_ = nullptr, *own_region_ = nullptr;
  std::unique_ptr<GinProxy> proxy_;
  std::vector<Peer> peers_;
};

}  // namespace

void run_rank(const RunOptions& options, uint32_t rank, Meeting& meeting, Figures* figures) {
  try {
    Rank(options, rank, meeting).play(figures);
  } catch (const Stop&) {
  } catch (const std::exception& error) {
    std::snprintf(meeting.reports[rank].problem.data(), meeting.reports[rank].problem.size(), "%s",
                  error.what());
  }
}

}  // namespace verbena::nccl::testing
