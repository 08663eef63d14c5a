// A receiver that writes what it likes into the sender's control block, that may say anything in its Welcome
// that passes the check, and anything over the control socket about queue pairs that have failed: grants,
// credit lines, notes and recovery records against a sender whose messages are posted and tested.
#include "support/devices.h"
#include "support/message.h"
#include "support/records.h"
#include "transport/sender.h"

#include <deque>

using namespace verbena;
using protocol::kMessageRing;

namespace {

constexpr uint64_t kConnection = 1;  // on its control socket

constexpr int kMaxSteps = 400, kMaxTag = 2;
constexpr uint32_t kEntries = 256, kPageBytes = 65536;

// In the place of a receiver: queue pairs with entries enough, all of one page.
class FakeReceiver {
 public:
  FakeReceiver(const transport::Nic& nic, uint32_t queue_pairs) {
    for (verbs::Device* device : nic.rails) {
      auto queue = verbs::SharedReceiveQueue::create(*device, kEntries);
      fuzz::require(static_cast<bool>(queue));
      queues_.push_back(std::move(*queue));
    }
    std::vector<verbs::SharedReceiveQueue*> queues;
    for (auto& queue : queues_) queues.push_back(&queue);
    const std::vector<uint32_t> entries(queue_pairs, kEntries);
    transport::Link::Options options;
    options.rails = nic.rails;
    options.queue_pairs = queue_pairs;
    options.receive_queues = queues;
    options.receive_entries = entries;
    auto link = transport::Link::create(options);
    fuzz::require(static_cast<bool>(link));
    link_ = std::move(*link);
    for (uint32_t i = 0; i < kEntries; ++i) {
      for (auto& queue : queues_) post_entry(queue);
    }
  }

  transport::Link& link() { return link_; }
  // Takes what has come and posts as many entries again; how many messages ended there.
  uint32_t take_arrivals() {
    uint32_t ended = 0;
    link_.poll([&](const verbs::Completion& completion, uint32_t queue_pair) {
      ++taken_[queue_pair];
      const auto tag = protocol::decode_tag(completion.imm());
      fuzz::require(tag.has_value());
      ended += tag->last;
      post_entry(queues_[link_.rail_of(queue_pair)]);
    });
    return ended;
  }
  uint32_t taken(uint32_t queue_pair) const { return taken_[queue_pair]; }

 private:
  static void post_entry(verbs::SharedReceiveQueue& queue) {
    const verbs::ReceiveBuffer buffer{fuzz::find_scratch().data(), kPageBytes, 0, 0};
    static_cast<void>(queue.post({&buffer, 1}));
  }

  std::vector<verbs::SharedReceiveQueue> queues_;  // before the link
  transport::Link link_;
  std::array<uint32_t, protocol::kMaxQueuePairs> taken_{};
};

protocol::SendOptions take_peer(FuzzedDataProvider& data, uint32_t queue_pairs) {
  protocol::SendOptions peer;
  peer.page_bytes = 4096U << data.ConsumeIntegralInRange(0, 4);
  for (uint32_t q = 0; q < queue_pairs; ++q) {
    peer.peer_rail_of[q] = static_cast<uint8_t>(data.ConsumeIntegralInRange(0, 7));
    peer.window[q] =
        data.ConsumeBool() ? data.ConsumeIntegralInRange(1U, 64U) : data.ConsumeIntegralInRange(1U, 65536U);
    peer.speed_mbps[q] = data.ConsumeBool() ? 100000 : data.ConsumeIntegral<uint32_t>();
  }
  peer.staging = data.ConsumeBool();
  peer.staging_threshold_bytes = data.ConsumeBool() ? data.ConsumeIntegral<uint64_t>() : 32768;
  peer.min_stripe_bytes = data.ConsumeIntegralInRange(4096U, 1U << 17);
  peer.primary = protocol::choose_primary(data.ConsumeIntegral<uint32_t>(), queue_pairs);
  return peer;
}

class Game {
 public:
  Game(FuzzedDataProvider& data, transport::Sender& sender, FakeReceiver& peer,
       protocol::ControlBlock& control, const transport::Registration* memory, const base::Socket& socket)
      : data_(data), sender_(sender), peer_(peer), control_(control), memory_(memory), socket_(socket) {}

  // False: the connection has failed.
  bool step() {
    switch (data_.ConsumeIntegralInRange(0, 11)) {
      case 0:
      case 1:
      case 2:
        return post();
      case 3:
      case 4:
        return test();
      case 5:
      case 6:
        write_grant();
        return true;
      case 7:
        consumed_ += peer_.take_arrivals();
        return true;
      case 8:
        tell_truth();
        return true;
      case 9:
        tell_record();
        return true;
      default:
        tell_lie();
        return true;
    }
  }

 private:
  bool post() {
    static constexpr uint64_t kLengths[] = {0, 1, 4096, 4097, 40000, 65537, 300000, 1048576};
    transport::Request* request = nullptr;
    if (!sender_.post(fuzz::find_scratch().data(), data_.PickValueInArray(kLengths), memory_,
                      data_.ConsumeBool(), &request, data_.ConsumeIntegralInRange(0, kMaxTag)))
      return false;
    if (request == nullptr) return true;
    open_.push_back(static_cast<transport::SendMessage*>(request));
    ++posted_;
    return true;
  }

  bool test() {
    if (open_.empty()) return true;
    const size_t index = data_.ConsumeIntegralInRange<size_t>(0, open_.size() - 1);
    bool is_done = false;
    if (!sender_.test(*open_[index], &is_done)) return false;
    if (is_done) open_.erase(open_.begin() + static_cast<ptrdiff_t>(index));
    return true;
  }

  // The address is one that the device can write: it is the receiver's own.
  void write_grant() {
    const bool is_next = data_.ConsumeIntegralInRange(0, 7) != 0;
    const uint32_t sequence = is_next ? granted_++ : data_.ConsumeIntegral<uint32_t>();
    auto& grant =
        control_
            .grants[(data_.ConsumeIntegralInRange(0, 15) == 0 ? data_.ConsumeIntegral<uint8_t>() : sequence) %
                    kMessageRing];
    grant.address = reinterpret_cast<uintptr_t>(fuzz::find_scratch().data());
    for (auto& key : grant.remote_keys) key = sequence;
    grant.length_bytes =
        data_.ConsumeIntegralInRange(0, 7) == 0 ? data_.ConsumeIntegral<uint64_t>() : fuzz::kScratchBytes;
    const auto primary = data_.ConsumeIntegralInRange(0U, peer_.link().queue_pairs() - 1);
    grant.note =
        data_.ConsumeIntegralInRange(0, 7) == 0
            ? protocol::CreditNote{data_.ConsumeIntegral<uint32_t>(), data_.ConsumeIntegral<uint32_t>()}
            : protocol::CreditNote::make(consumed_, primary, peer_.taken(primary));
    grant.stamp = data_.ConsumeIntegralInRange(0, 31) == 0
                      ? data_.ConsumeIntegral<uint64_t>()
                      : protocol::Grant::make_stamp(sequence, data_.ConsumeIntegralInRange(0, kMaxTag));
  }

  void tell_truth() {
    for (uint32_t q = 0; q < peer_.link().queue_pairs(); ++q) control_.credits.returned[q] = peer_.taken(q);
    control_.credits.consumed = consumed_;
  }

  void tell_lie() {
    const auto place = data_.ConsumeIntegralInRange(0U, protocol::kMaxQueuePairs);
    uint32_t& word =
        place == protocol::kMaxQueuePairs ? control_.credits.consumed : control_.credits.returned[place];
    word =
        data_.ConsumeBool() ? word + data_.ConsumeIntegralInRange(-3, 3) : data_.ConsumeIntegral<uint32_t>();
  }

  // While a request is open, so that the sender takes it in its next call.
  void tell_record() {
    if (open_.empty()) return;
    const auto record = fuzz::take_record(data_, peer_.link().queue_pairs());
    if (data_.ConsumeIntegralInRange(0, 31) == 0) fuzz::tell_frame(data_, socket_, kConnection);
    if (!fuzz::tell(socket_, kConnection, record)) return;
    if (record.kind == protocol::RecoveryKind::kArrived)
      fuzz::tell(socket_, kConnection, fuzz::take_arrived(data_, posted_));
    sender_.want();
  }

  FuzzedDataProvider& data_;
  transport::Sender& sender_;
  FakeReceiver& peer_;
  protocol::ControlBlock& control_;
  const transport::Registration* memory_;
  const base::Socket& socket_;
  std::deque<transport::SendMessage*> open_;
  uint32_t posted_ = 0, granted_ = 0, consumed_ = 0;
};

transport::Link make_link(const transport::Nic& nic, uint32_t queue_pairs) {
  transport::Link::Options options;
  options.rails = nic.rails;
  options.queue_pairs = queue_pairs;
  options.send_depth = protocol::kSendDepth;
  auto link = transport::Link::create(options);
  fuzz::require(static_cast<bool>(link));
  return std::move(*link);
}

// Each end's queue pair q meets the other's.
void join(transport::Link& a, transport::Link& b) {
  protocol::RailRecord rails[protocol::kMaxQueuePairs];
  protocol::QueuePairRecord pairs[protocol::kMaxQueuePairs];
  uint8_t rail_of[protocol::kMaxQueuePairs];
  for (transport::Link* from : {&a, &b}) {
    from->describe(rails, pairs);
    for (uint32_t q = 0; q < from->queue_pairs(); ++q) rail_of[q] = static_cast<uint8_t>(from->rail_of(q));
    fuzz::require(static_cast<bool>((from == &a ? b : a).connect(rails, pairs, rail_of)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  const int rails = data.ConsumeIntegralInRange(1, 3);
  const auto pairs = static_cast<uint32_t>(rails * data.ConsumeIntegralInRange(1, 2));
  const auto& nic = fuzz::find_nic(rails);
  FakeReceiver peer(nic, pairs);
  auto link = make_link(nic, pairs);
  join(link, peer.link());
  auto control = transport::ControlMemory::create(nic.rails);
  fuzz::require(static_cast<bool>(control));
  auto& block = *reinterpret_cast<protocol::ControlBlock*>(control->address());
  auto sockets = fuzz::make_sockets();
  auto socket = transport::PeerSocket::create(std::move(sockets.product), base::ConnectionEnd::kSender);
  socket->open();
  transport::Sender sender(std::move(link), std::move(*control), take_peer(data, pairs),
                           transport::PeerChannel::join(std::move(socket), kConnection, "a liar"));
  Game game(data, sender, peer, block, fuzz::find_registration(rails), sockets.peer);
  for (int i = 0; i < kMaxSteps && data.remaining_bytes() != 0 && game.step(); ++i) {
  }
  return 0;
}
