#include "device/message_queue/writer.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "base/hmac.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"
#include "device/message_queue/patience.h"

namespace verbena::message_queue {

using base::Outcome;
using base::Status;

namespace {

Outcome draw_secrets(Handle& handle) {
  if (auto drawn = base::draw_random(handle.nonce, "queue"); !drawn) return drawn;
  if (base::has_crypto()) return base::draw_random(handle.secret, "queue");
  static std::atomic<bool> is_said{false};
  if (!is_said.exchange(true)) {
    base::log_warn(
        "queue: the writer cannot authenticate readers on other hosts, because OpenSSL's libcrypto (3 or "
        "1.1) was not found. Anybody who can read the network traffic while such a reader attaches can join "
        "as a reader. The same attacker can send messages in the name of the writer, and readers that "
        "unpickle these messages run the attacker's code. To prevent this, install libcrypto");
  }
  return {};
}

}  // namespace

base::Result<std::unique_ptr<Writer>> Writer::create(const WriterOptions& options) {
  const RingShape& shape = options.shape;
  if (!shape.is_valid()) {
    return base::fail(Status::kInvalidArgument,
                      "queue: invalid shape: %u readers, %u chunks of %" PRIu64
                      " bytes; a queue has 1 to %u readers, 2 to %u chunks and 1 byte to 1 TiB in total",
                      shape.count_readers, shape.count_slots, shape.chunk_bytes, kMaxReaders, kMaxSlots);
  }
  auto listener = options.bind.family == base::IpFamily::kNone ? base::Listener::open()
                                                               : base::Listener::open_at(options.bind);
  if (!listener) return listener.error();
  Handle handle;
  if (auto drawn = draw_secrets(handle); !drawn) return drawn.error();
  auto proof = bootstrap::Proof::create(handle.secret);
  if (!proof) return proof.error();
  const auto host = bootstrap::identify_host(base::parameters().host_id);
  if (!host) return host.error();
  auto wake = base::WakeEvent::create("queue");
  if (!wake) return wake.error();
  auto ring = SharedRing::create(shape);
  if (!ring) return ring.error();
  handle.count_readers = shape.count_readers;
  handle.writer = listener->address();
  return std::unique_ptr<Writer>(new Writer(options, handle, std::move(*listener), std::move(*proof), *host,
                                            std::move(*ring), std::move(*wake)));
}

Writer::Writer(const WriterOptions& options, const Handle& handle, base::Listener listener,
               bootstrap::Proof proof, const bootstrap::HostKey& host, SharedRing ring, base::WakeEvent wake)
    : options_(options),
      handle_(handle),
      callers_(std::move(listener), std::move(proof), "queue: writer"),
      host_(host),
      ring_(std::move(ring)),
      writer_(ring_.memory()),
      published_ns_(options.shape.count_slots),
      wake_(std::move(wake)) {
  for (uint32_t reader = 0; reader < options.shape.count_readers; ++reader)
    peers_.push_back(std::make_unique<Peer>());
}

Writer::~Writer() {
  end();
}

void Writer::end() {
  if (std::exchange(has_ended_, true)) return;
  writer_.end();
  life_.stop();
  for (const auto& peer : peers_) {
    peer->watch.stop();
    peer->feed.reset();
    peer->link.reset();
  }
  newcomers_.clear();
  callers_.close();
  if (!is_reserved_) ring_ = {};
}

void Writer::notify() {
  interrupt_.fetch_or(kPeerNews, std::memory_order_release);
  RingWriter<RingMemory>::interrupt(writer_.memory());
}

void Writer::cancel(bool is_for_good) {
  if (has_ended_) return;
  interrupt_.fetch_or(is_for_good ? kShut : kCancelled, std::memory_order_release);
  RingWriter<RingMemory>::interrupt(writer_.memory());
  wake_.ring();
}

Outcome Writer::check_cancelled() {
  const uint32_t news = interrupt_.fetch_and(~uint32_t{kCancelled}, std::memory_order_acquire);
  if ((news & (kCancelled | kShut)) == 0) return {};
  wake_.clear();
  return base::fail_quietly(Status::kInvalidUsage, "queue: writer: the call was cancelled%s",
                            (news & kShut) != 0 ? ": this process has shut the queue down" : "");
}

uint32_t Writer::count_local() const {
  return static_cast<uint32_t>(
      std::ranges::count_if(peers_, [](const auto& peer) { return peer->is_local; }));
}

Outcome Writer::enqueue(std::span<const std::span<const std::byte>> parts, int64_t timeout_ms) {
  uint64_t message_bytes = 0;
  for (const auto part : parts) message_bytes += part.size();
  const int64_t deadline_ns = deadline_after(timeout_ms);
  const uint64_t chunk_bytes = options_.shape.chunk_bytes;
  uint64_t done_bytes = 0;
  size_t part = 0, part_bytes = 0;  // progress: number of whole parts, and bytes of the next part
  do {
    if (auto awaited = await_slot(deadline_ns); !awaited) return awaited;
    std::byte* const data = writer_.memory().data(writer_.slot());
    uint64_t filled_bytes = 0;
    while (part < parts.size() && filled_bytes < chunk_bytes) {
      const size_t length = std::min<uint64_t>(parts[part].size() - part_bytes, chunk_bytes - filled_bytes);
      if (length != 0) std::memcpy(data + filled_bytes, parts[part].data() + part_bytes, length);
      filled_bytes += length;
      part_bytes += length;
      if (part_bytes < parts[part].size()) continue;
      ++part;
      part_bytes = 0;
    }
    const uint32_t first = done_bytes == 0 ? SlotHead::kFirst : 0;
    done_bytes += filled_bytes;
    publish(filled_bytes, message_bytes, first | (done_bytes == message_bytes ? SlotHead::kLast : 0));
  } while (done_bytes < message_bytes);
  return {};
}

base::Result<std::span<std::byte>> Writer::reserve(int64_t timeout_ms) {
  if (auto awaited = await_slot(deadline_after(timeout_ms)); !awaited) return awaited.error();
  is_reserved_ = true;
  return std::span(writer_.memory().data(writer_.slot()), options_.shape.chunk_bytes);
}

Outcome Writer::commit(size_t length_bytes) {
  if (length_bytes > options_.shape.chunk_bytes || !writer_.can_write()) {
    return base::fail(
        Status::kInvalidUsage,
        "queue: writer: cannot commit %zu bytes. Call reserve() first, and commit at most one chunk (%" PRIu64
        " bytes)",
        length_bytes, options_.shape.chunk_bytes);
  }
  publish(length_bytes, length_bytes, SlotHead::kFirst | SlotHead::kLast);
  is_reserved_ = false;
  return {};
}

void Writer::publish(size_t length_bytes, uint64_t message_bytes, uint32_t flags) {
  const uint32_t slot = writer_.slot();
  SlotHead& head = writer_.memory().head(slot);
  head.length_bytes = length_bytes;
  head.message_bytes = message_bytes;
  head.flags = flags;
  writer_.publish();
  published_ns_[slot] = base::monotonic_ns();  // this comes after publishing, because no reader waits for it
}

Outcome Writer::await_slot(int64_t deadline_ns) {
  if (!is_ready_) {
    return base::fail(Status::kInvalidUsage,
                      "queue: writer: the queue is not ready. Call wait_until_ready() before enqueue()");
  }
  int64_t began_ns = 0;
  for (;;) {
    if (interrupt_.load(std::memory_order_relaxed) != 0) {
      if (auto going_on = look_after_peers(); !going_on) return going_on;
    }
    if (writer_.can_write()) return {};
    const int64_t now_ns = base::monotonic_ns();
    if (began_ns == 0) began_ns = now_ns;
    if (now_ns >= deadline_ns) return fail_slow(now_ns - began_ns);
    const auto has_news = [&] {
      return writer_.can_write() || interrupt_.load(std::memory_order_relaxed) != 0;
    };
    const int64_t spin_end_ns = SpinPlan(options_.spin_us).find_spin_end(now_ns);
    const SpinEnd spun = spin(std::min(deadline_ns, spin_end_ns), has_news);
    if (spun == SpinEnd::kSeen) continue;
    const bool is_interrupted =
        spun == SpinEnd::kInterrupted ||
        (writer_.sleep(interrupt_, deadline_ns) == SleepEnd::kSignal && must_return_after_signal());
    if (is_interrupted) return base::Error{Status::kTimeout, 0};
  }
}

// Finds readers that have left in order or died since the last call.
Outcome Writer::look_after_peers() {
  if (auto going_on = check_cancelled(); !going_on) return going_on;
  interrupt_.fetch_and(~uint32_t{kPeerNews}, std::memory_order_acquire);
  std::vector<uint32_t> dead;
  for (uint32_t reader = 0; reader < peers_.size(); ++reader) {
    Peer& peer = *peers_[reader];
    const bool has_gone = peer.watch.has_closed() || peer.watch.has_ended() ||
                          peer.feed_ended.load(std::memory_order_acquire) ||
                          LifeLine::has_died(writer_.memory().life_of_reader(reader));
    if (peer.step == Step::kReady && has_gone) {
      const bool is_orderly = writer_.memory().released(reader).load(std::memory_order_acquire) == kLeft;
      peer.step = is_orderly ? Step::kGone : Step::kDead;
    }
    if (peer.step == Step::kDead) dead.push_back(reader);
  }
  if (dead.empty()) return {};
  // Every call fails until these readers are dropped.
  interrupt_.fetch_or(kPeerNews, std::memory_order_relaxed);
  return base::fail(
      Status::kRemote,
      "queue: writer: %s dead or unreachable; the log of the reader says why. Either restart the reader and "
      "create a new queue, or continue without the reader (drop_reader)",
      (describe(dead.front()) +
       (dead.size() > 1 ? " and " + std::to_string(dead.size() - 1) + " more readers are" : " is"))
          .c_str());
}

Outcome Writer::drop_reader(uint32_t reader) {
  if (reader >= peers_.size()) {
    return base::fail(Status::kInvalidArgument,
                      "queue: writer: reader %u does not exist: the queue has %zu readers, counted from 0",
                      reader, peers_.size());
  }
  Peer& peer = *peers_[reader];
  peer.watch.stop();
  peer.feed.reset();
  peer.link.reset();
  peer.step = Step::kDropped;
  writer_.drop(reader);
  return {};
}

std::string Writer::describe(uint32_t reader) const {
  const Peer& peer = *peers_[reader];
  std::string known;
  if (!options_.reader_ranks.empty() && options_.reader_ranks[reader] != kAnyReader)
    known = "rank " + std::to_string(options_.reader_ranks[reader]);
  if (peer.process.pid != 0) {
    known += (known.empty() ? "process " : ", process ") + std::to_string(peer.process.pid);
  }
  return "reader " + std::to_string(reader) + (known.empty() ? "" : " (" + known + ")");
}

base::Error Writer::fail_slow(int64_t waited_ns) const {
  const RingMemory& memory = writer_.memory();
  const uint64_t oldest = writer_.next() - memory.count_slots();
  std::string who;
  uint32_t more = 0;
  for (uint32_t reader = 0; reader < peers_.size(); ++reader) {
    const uint64_t released = memory.released(reader).load(std::memory_order_relaxed);
    if (writer_.is_dropped(reader) || released > oldest) continue;
    if (!who.empty()) {
      ++more;
      continue;
    }
    const bool is_taken = memory.taken(reader).load(std::memory_order_relaxed) > released;
    who = describe(reader) +
          (is_taken ? " has read the chunk but has not released the chunk" : " has not read the chunk");
  }
  if (more != 0) who += ", and " + std::to_string(more) + " more readers have not released the chunk";
  const uint32_t slot = writer_.slot();
  return base::fail(
      Status::kTimeout,
      "queue: writer: no chunk became free within %.3f s. The oldest chunk (chunk %u) was written %.3f s "
      "ago, and %s. Check whether this reader is stopped or busy (the queue has %u chunks)",
      static_cast<double>(waited_ns) * 1e-9, slot,
      static_cast<double>(base::monotonic_ns() - published_ns_[slot]) * 1e-9, who.c_str(),
      memory.count_slots());
}

}  // namespace verbena::message_queue
