// A peer that says what it likes by datagrams: greetings, packets, acknowledgements, wishes and farewells,
// mostly with the right keys and numbers that lie near the truth, against an engine whose ends post and test.
#include "transport/datagram/engine.h"

#include <stdlib.h>

#include <bit>
#include <vector>

#include "base/parameters.h"
#include "support/devices.h"
#include "support/message.h"
#include "transport/datagram/greeting_keys.h"
#include "transport/datagram/meeting.h"
#include "verbs/address_handles.h"
#include "verbs/datagram_queues.h"

using namespace verbena;
using namespace verbena::protocol::datagram;
namespace datagram = verbena::transport::datagram;

namespace {

constexpr int kMaxSteps = 300;
constexpr uint32_t kMaxDatagramBytes = 4096, kMaxMessageBytes = 40'000;
constexpr uint16_t kDataLines = 31;  // of a page of 4 KiB
constexpr uint32_t kFullBytes = kDataLines * kDataLineBytes;

// The hostile end: a queue pair, and a name that the engine believes. All are of one host, another than this
// one.
class HostileEngine {
 public:
  HostileEngine(datagram::Engine& engine, const transport::Nic& nic, uint32_t number, uint8_t rails,
                uint16_t data_lines)
      : process{.space = 77, .start_ticks = 1, .pid = number, .reserved = 0}, engine_(engine) {
    verbs::Device& device = *nic.rails[0];
    sends_ = take(verbs::CompletionQueue::create(device, 16));
    receives_ = take(verbs::CompletionQueue::create(device, 16));
    queue_ = take(verbs::SharedReceiveQueue::create(device, 16));  // stays empty: what comes is lost
    pair_ = take(verbs::DatagramPair::create(device, sends_, receives_, queue_, {.send_depth = 16}));
    way_ = take(device.address_handles().take(device.local_address(), device.address(), -1, 1,
                                              verbs::AddressHandles::Purpose::kPeer));
    port_ = std::bit_cast<protocol::RailRecord>(device.address());
    name_.secret.fill(static_cast<uint8_t>(number + 1));
    name_.queue_key = 7;
    name_.rails = rails;
    name_.data_lines = data_lines;
    name_.id = take(datagram::make_engine_id(name_));
    keys_ = take(datagram::make_tag_keys(name_, engine.name()));
  }

  // By which the engine knows it, where the peers meet it in order.
  uint16_t slot() const { return static_cast<uint16_t>(process.pid); }
  DatagramHandle make_handle(uint64_t nonce) const {
    DatagramHandle handle{};
    handle.control = pair_.number();
    handle.nonce = nonce;
    handle.engine = name_;
    handle.port = port_;
    handle.process = process;
    seal_handle(handle);
    return handle;
  }
  Greeting make_greeting(uint16_t channel, uint64_t nonce) const {
    Greeting greeting{};
    greeting.version = kDatagramVersion;
    greeting.channel = channel;
    greeting.nonce = nonce;
    greeting.other_id = engine_.name().id;
    greeting.engine = name_;
    greeting.process = process;
    for (auto& rail : greeting.rail) rail = {port_, pair_.number(), pair_.number(), {}};
    return greeting;
  }
  // `bytes`: all but the MAC.
  void send_greeting(uint32_t pair, PacketKind kind, std::vector<uint8_t> bytes, bool is_signed) {
    const auto mac = take(datagram::make_greeting_mac(engine_.name().secret, kind, bytes));
    for (const uint8_t byte : mac) bytes.push_back(is_signed ? byte : 0);
    send(pair, {.slot = kStrangerSlot, .kind = kind}, bytes);
  }
  void send_packet(uint32_t pair, const Immediate& immediate, PacketHeader header,
                   const std::vector<uint8_t>& body, bool is_signed) {
    const bool covers_body = !carries_data(immediate.kind);
    header.tag = make_tag(keys_, header, immediate,
                          covers_body ? std::span<const uint8_t>(body) : std::span<const uint8_t>());
    if (!is_signed) header.tag ^= 1;
    std::vector<uint8_t> bytes(sizeof(header));
    std::memcpy(bytes.data(), &header, sizeof(header));
    bytes.insert(bytes.end(), body.begin(), body.end());
    send(pair, immediate, bytes);
  }
  void send(uint32_t pair, const Immediate& immediate, const std::vector<uint8_t>& bytes) {
    const verbs::Datagram sent{
        .way = way_.get(),
        .pair_number = pair,
        .key = engine_.name().queue_key,
        .imm = immediate.encode(),
        .header_length = static_cast<uint32_t>(std::min<size_t>(bytes.size(), kMaxDatagramBytes)),
        .header = bytes.data()};
    fuzz::require(static_cast<bool>(pair_.post({&sent, 1})));
    verbs::Completion completions[verbs::CompletionQueue::kMaxPollEntries];
    for (int i = 0, count = sends_.poll(completions); i < count; ++i) pair_.retire(completions[i].cookie);
  }

  const ProcessName process;

 private:
  template <typename Made>
  static Made take(base::Result<Made> made) {
    fuzz::require(static_cast<bool>(made));
    return std::move(*made);
  }

  datagram::Engine& engine_;
  verbs::CompletionQueue sends_, receives_;
  verbs::SharedReceiveQueue queue_;
  verbs::AddressHandle way_;
  verbs::DatagramPair pair_;
  protocol::RailRecord port_{};
  EngineName name_{};
  TagKeys keys_;
};

// An end of NCCL's with its open requests, in memory that is exactly as long as they are.
template <typename End>
struct Held {
  struct Open {
    transport::Request* request;
    std::vector<std::byte> memory;
  };
  explicit Held(std::unique_ptr<End> made) : end(std::move(made)) {}

  std::vector<Open> open;  // goes after the end
  std::unique_ptr<End> end;
};

class Game {
 public:
  Game(FuzzedDataProvider& data, int rails)
      : data_(data), registration_(fuzz::find_registration(rails)), nic_(fuzz::find_nic(rails)) {
    // So few pages that they run out, and an engine is made at once.
    static const bool is_small = [] {
      setenv("VERBENA_BOUNCE_BYTES", "1m", 1);
      return static_cast<bool>(base::load_parameters());
    }();
    fuzz::require(is_small);
    auto made = datagram::Engine::find(nic_, {}, false);
    fuzz::require(static_cast<bool>(made));
    engine_ = std::move(*made);
    peers_.emplace_back(*engine_, nic_, 0, data.PickValueInArray<uint8_t>({1, 1, 2, 8}), kDataLines);
    peers_.emplace_back(*engine_, nic_, 1, data.PickValueInArray<uint8_t>({1, 2, 8}),
                        data.PickValueInArray<uint16_t>({kDataLines, 1, 512}));
    auto listener = datagram::Listener::open(engine_, &handle_);
    fuzz::require(static_cast<bool>(listener));
    listener_ = std::move(*listener);
    // As most runs should begin: a channel from each peer, and one to the first.
    if (!data.ConsumeBool()) return;
    for (HostileEngine& peer : peers_) {
      greet(peer, PacketKind::kHello, 0, handle_.nonce);
      accept();
    }
    connect(peers_[0]);
    greet(peers_[0], PacketKind::kWelcome, 0, kNonce);
    poll_connector();
  }

  void step() {
    switch (data_.ConsumeIntegralInRange(0, 15)) {
      case 0:
        return lie_in_greeting();
      case 1:
        return accept();
      case 2:
        return connector_ == nullptr ? connect(pick_peer()) : poll_connector();
      case 3:
        return post_receive();
      case 4:
        return post_send();
      case 5:
        return test(receives_);
      case 6:
        return test(sends_);
      case 7:
        return close();
      case 8:
      case 9:
        return send_ack();
      case 10:
        return send_wishes();
      case 11:
        return send_farewell();
      case 12:
        return data_.ConsumeBool() ? send_anything() : send_message();
      case 13:
        return send_reset();
      default:
        return send_data();
    }
  }
  // What no peer may break: the engine is there for the others, and every page is somewhere once.
  void check() {
    const datagram::EngineGuard guard(*engine_, datagram::EngineGuard::Waits{});
    engine_->pass();
    fuzz::require(!engine_->failure().has_failed());
    const PageBudget& budget = engine_->core().budget();
    uint32_t pages =
        budget.held() + budget.parked() + budget.lent() + budget.moving() + engine_->core().idle();
    for (uint32_t rail = 0; rail < engine_->rails().size(); ++rail)
      for (const PageQueue queue : {PageQueue::kGranted, PageQueue::kEager})
        pages += budget.posted(rail, queue);
    fuzz::require(pages == budget.pages());
  }

 private:
  static constexpr uint64_t kNonce = 99;  // of the peers' listeners

  HostileEngine& pick_peer() { return peers_[data_.ConsumeIntegralInRange<size_t>(0, 7) == 0 ? 1 : 0]; }
  bool is_likely() { return data_.ConsumeIntegralInRange(0, 15) != 0; }
  template <typename Number>
  Number take_small(Number most = 8) {
    return is_likely() ? data_.ConsumeIntegralInRange<Number>(0, most) : data_.ConsumeIntegral<Number>();
  }
  EngineRail pick_rail() {
    const size_t last = engine_->rails().size() - 1;
    return engine_->rails()[data_.ConsumeIntegralInRange<size_t>(0, last)]->describe();
  }
  uint32_t pick_pair(const EngineRail& rail) {
    return data_.PickValueInArray({rail.control, rail.eager, rail.granted[0], rail.granted[3]});
  }

  void greet(HostileEngine& peer, PacketKind kind, uint16_t channel, uint64_t nonce) {
    send_greeting(peer, kind, peer.make_greeting(channel, nonce), true);
  }
  void send_greeting(HostileEngine& peer, PacketKind kind, const Greeting& greeting, bool is_signed,
                     uint32_t shorter_bytes = 0) {
    std::vector<uint8_t> bytes(sizeof(PacketHeader) + sizeof(Greeting));
    std::memcpy(bytes.data() + sizeof(PacketHeader), &greeting, sizeof(greeting));
    const size_t covered = sizeof(PacketHeader) + greeting.covered_bytes();
    bytes.resize(std::min(covered, bytes.size()) - std::min<size_t>(shorter_bytes, covered));
    peer.send_greeting(engine_->rails()[0]->control.number(), kind, std::move(bytes), is_signed);
    check();
  }
  void lie_in_greeting() {
    HostileEngine& peer = pick_peer();
    const auto kind = data_.PickValueInArray({PacketKind::kHello, PacketKind::kWelcome});
    const uint64_t nonce = is_likely() ? (kind == PacketKind::kHello ? handle_.nonce : kNonce)
                                       : data_.ConsumeIntegral<uint64_t>();
    Greeting greeting = peer.make_greeting(take_small<uint16_t>(), nonce);
    greeting.slot = take_small<uint16_t>();
    greeting.refusal = static_cast<GreetingRefusal>(take_small<uint16_t>(0));
    if (!is_likely()) greeting.engine.rails = data_.PickValueInArray<uint8_t>({0, 9});
    if (!is_likely()) greeting.engine.data_lines = data_.PickValueInArray<uint16_t>({0, 513});
    if (!is_likely()) {
      const auto wrong = data_.ConsumeBytes<uint8_t>(data_.ConsumeIntegralInRange<size_t>(0, 64));
      const size_t at = data_.ConsumeIntegralInRange<size_t>(0, sizeof(greeting) - wrong.size());
      std::copy(wrong.begin(), wrong.end(), reinterpret_cast<uint8_t*>(&greeting) + at);
    }
    send_greeting(peer, kind, greeting, is_likely(), is_likely() ? 0 : data_.ConsumeIntegral<uint8_t>());
  }

  void accept() {
    auto end = listener_->poll(false, 0);
    if (end && *end != nullptr) receives_.emplace_back(std::move(*end));
  }
  void connect(const HostileEngine& peer) {
    auto started = datagram::Connector::start(engine_, peer.make_handle(kNonce));
    fuzz::require(static_cast<bool>(started));
    connector_ = std::move(*started);
    poll_connector();
  }
  void poll_connector() {
    if (connector_ == nullptr) return;
    auto end = connector_->poll();
    if (end && *end == nullptr) return;
    if (end) sends_.emplace_back(std::move(*end));
    connector_.reset();
  }
  template <typename Ends>
  auto* pick_end(Ends& ends) {
    return ends.empty() ? nullptr : &ends[data_.ConsumeIntegralInRange<size_t>(0, ends.size() - 1)];
  }
  void post_receive() {
    auto* const held = pick_end(receives_);
    if (held == nullptr) return;
    std::vector<std::byte> memory(data_.ConsumeIntegralInRange(0U, kMaxMessageBytes));
    transport::Request* request = nullptr;
    static_cast<void>(held->end->post(memory.data(), memory.size(), registration_,
                                      protocol::ReceiveClass::kNoSlot, &request, 0));
    if (request != nullptr) held->open.push_back({request, std::move(memory)});
  }
  void post_send() {
    auto* const held = pick_end(sends_);
    if (held == nullptr) return;
    std::vector<std::byte> memory(data_.ConsumeIntegralInRange(0U, kMaxMessageBytes));
    transport::Request* request = nullptr;
    static_cast<void>(held->end->post(memory.data(), memory.size(), registration_, false, &request, 0));
    if (request != nullptr) held->open.push_back({request, std::move(memory)});
  }
  static bool test_one(transport::MessageEnd& end, transport::Request* request, size_t room) {
    int is_done = 0, length_bytes = 0;
    static_cast<void>(end.test(*request, &is_done, &length_bytes));
    if (is_done != 0) fuzz::require(static_cast<size_t>(length_bytes) <= room);
    return is_done != 0;
  }
  template <typename Ends>
  void test(Ends& ends) {
    auto* const held = pick_end(ends);
    if (held == nullptr) return;
    for (auto open = held->open.begin(); open != held->open.end();) {
      const bool is_done = test_one(*held->end, open->request, open->memory.size());
      open = is_done ? held->open.erase(open) : open + 1;
    }
  }
  void close() {
    if (data_.ConsumeBool()) {
      if (!sends_.empty()) sends_.erase(sends_.begin());
    } else if (!receives_.empty()) {
      receives_.erase(receives_.begin());
    }
    if (!is_likely()) connector_.reset();
  }

  Immediate take_immediate(PacketKind kind, const HostileEngine& from) {
    Immediate immediate;
    immediate.slot = is_likely() ? from.slot() : data_.ConsumeIntegral<uint16_t>();
    immediate.path = data_.ConsumeIntegralInRange<uint8_t>(0, 31);
    immediate.is_last = data_.ConsumeBool();
    immediate.asks = data_.ConsumeBool();
    immediate.kind = is_likely() ? kind : static_cast<PacketKind>(data_.ConsumeIntegralInRange(0, 7));
    return immediate;
  }
  PacketHeader take_header() {
    PacketHeader header{};
    header.psn = take_small<uint32_t>(40);
    header.place = is_likely() ? Place{take_small<uint16_t>(), take_small<uint32_t>(12)}.encode()
                               : data_.ConsumeIntegral<uint32_t>();
    header.channel = take_small<uint16_t>(1);
    header.backlog =
        static_cast<uint16_t>(take_small<uint16_t>(12) | (data_.ConsumeBool() ? kTookCredit : 0));
    header.time = data_.ConsumeIntegral<uint32_t>();
    return header;
  }
  void send_data() {
    const bool is_granted = data_.ConsumeBool();
    const EngineRail rail = pick_rail();
    const uint32_t pair = is_likely() ? (is_granted ? rail.granted[0] : rail.eager) : pick_pair(rail);
    const size_t length = data_.ConsumeBool() ? kFullBytes : data_.ConsumeIntegralInRange<size_t>(0, 4072);
    HostileEngine& peer = pick_peer();
    const Immediate immediate = take_immediate(is_granted ? PacketKind::kGranted : PacketKind::kEager, peer);
    peer.send_packet(pair, immediate, take_header(), std::vector<uint8_t>(length), is_likely());
    check();
  }
  // As an honest peer sends its next one: a few packets, all eager, in any order.
  void send_message() {
    const uint32_t packets = data_.ConsumeIntegralInRange(1U, 4U);
    const uint32_t first = data_.ConsumeIntegralInRange(0U, packets - 1);
    const EngineRail rail = pick_rail();
    for (uint32_t i = 0; i < packets; ++i) {
      const uint32_t index = (first + i) % packets;
      PacketHeader header{};
      header.psn = eager_number_++;
      header.place = Place{message_number_, index}.encode();
      header.backlog = static_cast<uint16_t>((packets - index - 1) | kTookCredit);
      Immediate immediate;
      immediate.slot = 0;
      immediate.kind = PacketKind::kEager;
      immediate.is_last = index + 1 == packets;
      const size_t length =
          immediate.is_last ? data_.ConsumeIntegralInRange<size_t>(0, kFullBytes) : kFullBytes;
      peers_[0].send_packet(rail.eager, immediate, header, std::vector<uint8_t>(length), true);
      check();
    }
    ++message_number_;
  }
  template <typename Body>
  void send_control(PacketKind kind, const PacketHeader& header, const Body* bodies, size_t count) {
    std::vector<uint8_t> bytes(count * sizeof(Body));
    if (count != 0) std::memcpy(bytes.data(), bodies, bytes.size());
    send_control(kind, header, std::move(bytes));
  }
  void send_control(PacketKind kind, const PacketHeader& header, std::vector<uint8_t> bytes) {
    if (!is_likely()) bytes.resize(data_.ConsumeIntegralInRange<size_t>(0, 700));
    const EngineRail rail = pick_rail();
    const uint32_t pair = is_likely() ? rail.control : pick_pair(rail);
    HostileEngine& peer = pick_peer();
    peer.send_packet(pair, take_immediate(kind, peer), header, bytes, is_likely());
    check();
  }
  void send_ack() {
    PacketHeader header = take_header();
    header.place = is_likely() ? take_small<uint32_t>(3) * 64 : data_.ConsumeIntegral<uint32_t>();
    AckBody body{};
    for (auto& word : body.received) word = data_.ConsumeBool() ? 0 : data_.ConsumeIntegral<uint64_t>();
    body.echo = data_.ConsumeIntegral<uint32_t>();
    body.hold = data_.ConsumeBool() ? kNoSample : data_.ConsumeIntegral<uint16_t>();
    body.duplicates = take_small<uint16_t>();
    body.late_paths = take_small<uint32_t>(0);
    body.eager_limit = take_small<uint32_t>(40);
    body.eager_cumulative = take_small<uint32_t>(12);
    body.eager_received = take_small<uint32_t>(15);
    std::vector<uint8_t> bytes(sizeof(body));
    std::memcpy(bytes.data(), &body, sizeof(body));
    for (uint32_t left = take_small<uint8_t>(kMaxGrantsPerAck) % 8; left != 0; --left) {
      const GrantRecord grant{take_small<uint16_t>(1), 0,
                              Place{take_small<uint16_t>(), take_small<uint32_t>(12)}.encode()};
      const auto* const from = reinterpret_cast<const uint8_t*>(&grant);
      bytes.insert(bytes.end(), from, from + sizeof(grant));
    }
    send_control(PacketKind::kAck, header, std::move(bytes));
  }
  void send_wishes() {
    std::vector<Wish> wishes(take_small<uint8_t>(kMaxWishesPerRequest) % 32);
    for (Wish& wish : wishes)
      wish = {take_small<uint16_t>(1), take_small<uint16_t>(), take_small<uint32_t>(40)};
    send_control(PacketKind::kRequest, take_header(), wishes.data(), wishes.size());
  }
  void send_farewell() {
    const Farewell farewell{take_small<uint16_t>(1), take_small<uint8_t>(1),
                            static_cast<FarewellKind>(take_small<uint8_t>(3))};
    send_control(PacketKind::kClose, take_header(), &farewell, 1);
  }
  // Whoever is doubted may be given up in any pass.
  bool has_doubts() {
    const datagram::EngineGuard guard(*engine_, datagram::EngineGuard::Waits{});
    for (uint32_t id = 0; id < engine_->core().peers(); ++id)
      if (engine_->peer_of(id).doubted_ns != 0) return true;
    return false;
  }
  uint32_t count_failed() {
    const datagram::EngineGuard guard(*engine_, datagram::EngineGuard::Waits{});
    uint32_t failed = 0;
    for (uint32_t id = 0; id < engine_->core().peers(); ++id)
      failed += engine_->failure_of(id).has_failed() ? 1 : 0;
    return failed;
  }
  // Of the other peer, whose end is doubted; of this process too, which has not ended. Whoever says so does
  // it with a peer's tag, and nobody is given up at once.
  void send_reset() {
    const bool had_doubts = has_doubts();
    const uint32_t failed = count_failed();
    LifeRecord record{};
    record.process = data_.ConsumeBool() ? pick_peer().process : datagram::name_own_process();
    if (!is_likely()) record.process.pid = data_.ConsumeIntegral<uint32_t>();
    record.is_question = take_small<uint32_t>(1);
    std::vector<uint8_t> bytes(is_likely() ? sizeof(record) : 0);
    if (!bytes.empty()) std::memcpy(bytes.data(), &record, sizeof(record));
    const bool is_signed = data_.ConsumeBool();
    Immediate immediate;
    HostileEngine& peer = pick_peer();
    immediate.slot = is_likely() ? peer.slot() : data_.ConsumeIntegralInRange<uint16_t>(0, 1);
    immediate.kind = PacketKind::kReset;
    peer.send_packet(pick_rail().control, immediate, take_header(), bytes, is_signed);
    check();
    if (!had_doubts && (!is_signed || !bytes.empty())) fuzz::require(count_failed() == failed);
  }
  void send_anything() {
    const Immediate immediate = Immediate::decode(data_.ConsumeIntegral<uint32_t>());
    const uint32_t pair = pick_pair(pick_rail());
    const auto bytes = data_.ConsumeBytes<uint8_t>(data_.ConsumeIntegralInRange<size_t>(0, 700));
    pick_peer().send(pair, immediate, bytes);
    check();
  }

  FuzzedDataProvider& data_;
  const transport::Registration* const registration_;
  const transport::Nic& nic_;
  std::shared_ptr<datagram::Engine> engine_;
  std::vector<HostileEngine> peers_;
  DatagramHandle handle_{};
  std::unique_ptr<datagram::Listener> listener_;
  std::unique_ptr<datagram::Connector> connector_;
  std::vector<Held<datagram::ReceiveEnd>> receives_;
  std::vector<Held<datagram::SendEnd>> sends_;
  uint16_t message_number_ = 0;  // of the first peer's channel 0, as an honest one counts
  uint32_t eager_number_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  Game game(data, data.ConsumeIntegralInRange(1, 2));
  for (int i = 0; i < kMaxSteps && data.remaining_bytes() != 0; ++i) game.step();
  game.check();
  return 0;
}
