// Two engines and a wire that does what a test says: what leaves when, what is refused, what is said again.
#include "protocol/datagram/engine_core.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "protocol/datagram/free_pages.h"

namespace verbena::protocol::datagram {
namespace {

constexpr uint32_t kFullBytes = 3'968;

struct Datagram {
  enum class Kind { kData, kAck, kRequest } kind;
  OutPacket data{};
  uint16_t channel = 0;
  Place place{};
  uint32_t length_bytes = 0;
  Stamp time = 0;
  Ack ack{};
  std::vector<Wish> wishes = {};

  bool is_data() const { return kind == Kind::kData; }
  bool is_eager() const { return is_data() && data.kind == PacketKind::kEager; }
};

class End : public EngineCore<End> {
 public:
  explicit End(const EngineOptions& options)
      : EngineCore(*this, options), pages(options.pages.pages + options.pages.short_pages) {}

  int64_t now_ns() const { return now; }
  uint32_t rooms() const { return room; }
  uint32_t live_rails() const { return (1U << options().rails) - 1; }
  uint32_t post_data(uint32_t, const OutPacket& packet) {
    Datagram datagram{
        .kind = Datagram::Kind::kData, .data = packet, .channel = kNoChannel, .time = make_stamp(now)};
    if (packet.message != kNoObject) {
      const SendMessage& message = send_message(packet.message);
      datagram.channel = send_channel(message.channel).wire;
      datagram.place = {static_cast<uint16_t>(message.number % kMessageNumbers), packet.index};
      datagram.length_bytes = static_cast<uint32_t>(
          std::min<uint64_t>(message.length_bytes - uint64_t{packet.index} * kFullBytes, kFullBytes));
    }
    out.push_back(datagram);
    departures.push_back(make_stamp(now));
    return static_cast<uint32_t>(departures.size() - 1);
  }
  bool has_left(uint32_t packet, Stamp& when) const {
    if (packet >= first_waiting && packet < end_waiting) return false;
    when = departures[packet];
    return true;
  }
  // So many of those that wait leave now.
  void let_go(uint32_t packets) {
    for (; packets != 0; --packets) departures[first_waiting++] = make_stamp(now);
  }
  bool has_room_for_ack(uint32_t) const { return ack_room != 0; }
  void post_ack(uint32_t, uint32_t path, const Ack& ack) {
    if (ack_room == 0) return;
    --ack_room;
    ack_paths.push_back(path);
    out.push_back({.kind = Datagram::Kind::kAck, .ack = ack});
  }
  void post_request(uint32_t, uint32_t, std::span<const Wish> wishes) {
    out.push_back({.kind = Datagram::Kind::kRequest, .wishes = {wishes.begin(), wishes.end()}});
  }
  void post_pages(uint32_t, PageQueue, uint32_t) {}
  void put_back(uint32_t page) { pages.put_back(page); }
  bool copy_page(uint32_t message, uint32_t page, uint64_t offset, uint32_t length_bytes) {
    moves.emplace_back(message, page);
    copied_to.push_back(offset);
    copied_bytes += length_bytes;
    return false;
  }
  void end_moves() {
    for (const auto& [message, page] : std::exchange(moves, {})) {
      pages.put_back(page);
      note_moved(message, 1);
    }
  }
  void note_sent(uint32_t message) { sent.push_back(message); }
  void note_received(uint32_t message) { received.push_back(message); }
  void note_silent(uint32_t peer) { silent.push_back(peer); }
  void note_stuck(uint32_t, uint32_t message) { stuck.push_back(message); }

  uint32_t count(Datagram::Kind kind) const {
    return static_cast<uint32_t>(
        std::count_if(out.begin(), out.end(), [&](const Datagram& d) { return d.kind == kind; }));
  }

  int64_t now = 1'000'000;
  uint32_t room = 1, ack_room = UINT32_MAX;
  std::vector<Stamp> departures;                // of data packets
  uint32_t first_waiting = 0, end_waiting = 0;  // which of them have not left
  std::deque<Datagram> out;
  FreePages pages;
  std::vector<std::pair<uint32_t, uint32_t>> moves;  // message, page
  std::vector<uint64_t> copied_to;                   // offsets, in order
  uint64_t copied_bytes = 0;
  std::vector<uint32_t> sent, received, silent, stuck, ack_paths;
};

EngineOptions make_options() {
  EngineOptions options;
  options.pages.pages = 4'096;
  return options;
}

class EngineCoreTest : public testing::Test {
 protected:
  explicit EngineCoreTest(const EngineOptions& options = make_options()) : left(options), right(options) {
    left.add_idle(options.pages.pages);
    right.add_idle(options.pages.pages);
    there = left.add_peer(~0U, kFullBytes);
    here = right.add_peer(~0U, kFullBytes);
    channel = left.open_send(there, 0);
    receiving = right.open_receive(here, 0);
    right.pump();
    left.pump();
  }

  uint32_t post(uint64_t room_bytes, uint32_t most_pages = 2'048) {
    return post_on(receiving, room_bytes, most_pages);
  }
  uint32_t post_on(uint32_t channel_id, uint64_t room_bytes, uint32_t most_pages = 2'048) {
    const uint32_t id = right.post(channel_id, room_bytes, most_pages);
    EXPECT_NE(id, kNoObject);
    right.settle(id);
    return id;
  }
  // A message and its receive.
  struct Offered {
    uint32_t send, receive;
  };
  Offered offer(uint64_t bytes) { return {left.send(channel, bytes), post(bytes)}; }
  uint32_t send_now(uint64_t bytes) {
    const uint32_t id = left.send(channel, bytes);
    left.pump();
    return id;
  }
  // What a message has under way.
  std::deque<Datagram> send_apart(uint64_t bytes) {
    send_now(bytes);
    return std::exchange(left.out, {});
  }
  void ask(uint32_t peer, const Wish& wish) { right.on_request(peer, {&wish, 1}); }
  void consume(uint32_t sending, uint32_t received) {
    left.forget(sending);
    right.release(received);
  }
  void finish() {
    for (const uint32_t id : std::exchange(left.sent, {})) left.forget(id);
    for (const uint32_t id : std::exchange(right.received, {})) right.release(id);
  }
  // One datagram to the other side.
  Verdict deliver(End& to, uint32_t peer, const Datagram& datagram) {
    switch (datagram.kind) {
      case Datagram::Kind::kAck:
        to.on_ack(peer, datagram.ack.cumulative, datagram.ack.base, datagram.ack.body,
                  {datagram.ack.grants.data(), datagram.ack.grant_count});
        return Verdict::kTaken;
      case Datagram::Kind::kRequest:
        to.on_request(peer, datagram.wishes);
        return Verdict::kTaken;
      case Datagram::Kind::kData:
        break;
    }
    const bool is_short = datagram.length_bytes <= short_bytes && datagram.data.is_last &&
                          datagram.place.index == 0 && datagram.data.kind == PacketKind::kEager;
    const Placed placed =
        to.on_data(peer, {.page = to.pages.take(),
                          .psn = datagram.data.psn,
                          .channel = datagram.channel,
                          .place = datagram.place,
                          .backlog = datagram.data.is_last ? uint16_t{0} : datagram.data.backlog,
                          .took_credit = datagram.data.took_credit,
                          .is_last = datagram.data.is_last,
                          .asks = datagram.data.asks,
                          .path = datagram.data.path,
                          .was_marked = false,
                          .rail = 0,
                          .queue = datagram.data.kind == PacketKind::kGranted ? PageQueue::kGranted
                                   : is_short                                 ? PageQueue::kShort
                                                                              : PageQueue::kEager,
                          .time = datagram.time,
                          .length_bytes = datagram.length_bytes});
    return placed.verdict;
  }
  void pass_time(int64_t ns) {
    left.now = right.now = left.now + ns;
    left.tick(left.now);
    right.tick(right.now);
    left.pump();
    right.pump();
  }
  // Passes of both until nothing is said any more; what `loses` says is lost.
  void run(int64_t ns = 0, const std::function<bool(const Datagram&)>& loses = {}) {
    for (const int64_t end = left.now + ns;;) {
      left.pump();
      right.pump();
      while (!left.out.empty() || !right.out.empty()) {
        exchange(left, right, here, loses);
        exchange(right, left, there, loses);
        left.pump();
        right.pump();
      }
      right.end_moves();
      if (left.now >= end && left.out.empty() && right.out.empty()) return;
      if (left.now < end) pass_time(5'000);
    }
  }
  void exchange(End& from, End& to, uint32_t peer, const std::function<bool(const Datagram&)>& loses) {
    const auto datagrams = std::exchange(from.out, {});
    for (const Datagram& datagram : datagrams)
      if (!loses || !loses(datagram)) deliver(to, peer, datagram);
  }

  End left, right;
  uint32_t there = 0, here = 0, channel = 0, receiving = 0;
  uint32_t short_bytes = 0;  // of messages that take short pages
};

TEST_F(EngineCoreTest, AShortMessageIsOnePacketAndOneAcknowledgement) {
  const uint32_t receive = post(100);
  const uint32_t send = send_now(100);
  ASSERT_EQ(left.out.size(), 1U);
  EXPECT_TRUE(left.out[0].data.is_last);
  EXPECT_TRUE(left.out[0].data.asks);
  EXPECT_EQ(left.out[0].data.kind, PacketKind::kEager);
  EXPECT_EQ(deliver(right, here, left.out[0]), Verdict::kTaken);
  EXPECT_EQ(right.received, std::vector<uint32_t>{receive});
  EXPECT_EQ(right.receive_message(receive).lent, 1U);
  right.pump();
  ASSERT_EQ(right.out.size(), 1U);
  deliver(left, there, right.out[0]);
  EXPECT_EQ(left.sent, std::vector<uint32_t>{send});
  consume(send, receive);
  EXPECT_EQ(right.budget().lent(), 0U);
  pass_time(1'000'000'000);
  EXPECT_EQ(left.statistics().sent_packets, 1U) << "nothing is left to be said";
}

TEST_F(EngineCoreTest, AnEmptyMessageTakesNoPage) {
  const uint32_t receive = post(0);
  send_now(0);
  EXPECT_EQ(deliver(right, here, left.out[0]), Verdict::kTaken);
  EXPECT_EQ(right.received, std::vector<uint32_t>{receive});
  EXPECT_EQ(right.receive_message(receive).lent, 0U);
}

TEST_F(EngineCoreTest, ALongMessageWaitsForGrantsBeyondItsEagerPackets) {
  post(100 * kFullBytes);
  send_now(100 * kFullBytes);
  EXPECT_EQ(left.count(Datagram::Kind::kData), 8U);
  EXPECT_EQ(left.out.back().data.backlog, 92U);
  const auto eager = std::exchange(left.out, {});
  for (const Datagram& datagram : eager) deliver(right, here, datagram);
  right.pump();
  ASSERT_FALSE(right.out.empty());
  EXPECT_EQ(right.outstanding(), 92U);
  EXPECT_EQ(right.peer(here).eager_settled, 8U) << "other messages may have the credits now";
  EXPECT_EQ(Place::decode(right.out.back().ack.grants[0].place).index, 100U);
  run();
  EXPECT_EQ(right.received.size(), 1U);
  EXPECT_EQ(left.sent.size(), 1U);
  EXPECT_EQ(right.outstanding(), 0U);
}

TEST_F(EngineCoreTest, GrantsInAllAreNoMoreThanCredits) {
  std::vector<uint32_t> channels;
  for (uint16_t wire = 1; wire <= 8; ++wire) {
    left.open_send(there, wire);
    channels.push_back(right.open_receive(here, wire));
    post_on(channels.back(), 1'000 * kFullBytes);
    left.send(wire, 1'000 * kFullBytes);
  }
  for (int i = 0; i < 40; ++i) {
    left.pump();
    exchange(left, right, here, {});
    right.pump();
    ASSERT_LE(right.outstanding(), 512U);
    exchange(right, left, there, {});
  }
}

TEST_F(EngineCoreTest, WhatComesBeforeItsReceiveIsParkedAsFarAsCreditsReach) {
  for (int i = 0; i < 20; ++i) left.send(channel, 10);
  run(100'000);
  EXPECT_EQ(right.peer(here).parked, 8U);
  EXPECT_EQ(right.budget().parked(), 8U);
  EXPECT_EQ(left.sent.size(), 8U) << "what is parked is acknowledged";
  for (int i = 0; i < 20; ++i) post(10);
  run(1'000'000);
  EXPECT_EQ(right.received.size(), 20U);
  EXPECT_EQ(left.sent.size(), 20U);
  EXPECT_EQ(right.budget().parked(), 0U);
}

// Short messages have pages of their own, which are copied, while those of others are lent.
class TwoRailsTest : public EngineCoreTest {
 protected:
  TwoRailsTest() : EngineCoreTest(with_two_rails()) {}
  static EngineOptions with_two_rails() {
    EngineOptions options = make_options();
    options.rails = 2;
    return options;
  }
};

TEST_F(TwoRailsTest, APeerWhoseRailIsFullHoldsUpNoOther) {
  constexpr uint32_t kRailOf[] = {0, 0, 1, 0, 1};
  constexpr uint32_t kPathsOf[] = {0x55555555, 0xAAAAAAAA};
  left.room = 0;
  for (const uint32_t rail : kRailOf) {
    const uint32_t peer = left.add_peer(kPathsOf[rail], kFullBytes);
    left.send(left.open_send(peer, 0), 6 * kFullBytes);  // more than a turn's packets
  }
  left.pump();
  EXPECT_EQ(left.count(Datagram::Kind::kData), 0U);
  left.room = 2;
  left.pump();
  EXPECT_EQ(left.count(Datagram::Kind::kData), 12U);
  left.room = 1;
  left.pump();
  EXPECT_EQ(left.count(Datagram::Kind::kData), 30U);
}

// Over other paths of the same rails than this end takes.
TEST_F(TwoRailsTest, AcknowledgementsReturnOverThePathOfTheirData) {
  constexpr uint32_t kOwnPaths = 0b11;
  left.set_paths(there, ~0U, ~0U);
  right.set_paths(here, kOwnPaths, ~0U);
  right.ack_paths.clear();
  for (uint32_t i = 0; i < kPaths; ++i) {
    offer(10);
    uint32_t path = kPaths;
    run(0, [&](const Datagram& datagram) {
      if (datagram.is_data()) path = datagram.data.path;
      return false;
    });
    EXPECT_EQ(right.ack_paths, std::vector<uint32_t>{path});
    right.ack_paths.clear();
    finish();
  }
}

class ShortPagesTest : public EngineCoreTest {
 protected:
  static constexpr uint32_t kShortPages = 64;
  ShortPagesTest()
      : EngineCoreTest([] {
          EngineOptions options = make_options();
          options.pages.short_pages = kShortPages;
          return options;
        }()) {
    right.add_idle(kShortPages, true);
    right.pump();
    short_bytes = 100;
  }
};

TEST_F(ShortPagesTest, AShortMessageTakesOne) {
  EXPECT_EQ(right.short_budget().posted(0, PageQueue::kEager), kShortPages - kShortPages / 8);
  const uint32_t before = right.budget().posted(0, PageQueue::kEager);
  for (int i = 0; i < 3; ++i) offer(10);
  left.pump();
  exchange(left, right, here, {});
  EXPECT_EQ(right.short_budget().moving(), 3U);
  EXPECT_EQ(right.budget().posted(0, PageQueue::kEager), before);
  EXPECT_EQ(right.statistics().evacuations, 0U);
  run();
  EXPECT_EQ(right.received.size(), 3U);
  EXPECT_EQ(right.short_budget().moving(), 0U);
  for (int i = 0; i < 4; ++i) left.send(channel, 10);  // before their receives
  run(100'000);
  EXPECT_EQ(right.short_budget().parked(), 4U);
  EXPECT_EQ(right.budget().parked(), 0U);
  for (int i = 0; i < 4; ++i) post(10);
  run(100'000);
  EXPECT_EQ(right.received.size(), 7U);
  EXPECT_EQ(left.sent.size(), 7U);
  offer(3 * kFullBytes);
  run(100'000);
  EXPECT_EQ(right.received.size(), 8U);
  EXPECT_EQ(right.budget().lent(), 3U);
  EXPECT_EQ(right.short_budget().parked() + right.short_budget().moving() + right.short_budget().held(), 0U);
}

// A packet for which there is no short page is granted one of the others.
TEST_F(ShortPagesTest, WithoutOneItIsGranted) {
  for (int i = 0; i < 3; ++i) offer(10);
  run(20'000'000, [](const Datagram& datagram) { return datagram.is_eager(); });
  EXPECT_EQ(right.received.size(), 3U);
  EXPECT_EQ(right.budget().lent(), 3U);
  EXPECT_EQ(right.short_budget().posted(0, PageQueue::kEager) + right.short_idle(), kShortPages);
}

// A message's pages are of one kind: of what contradicts that, nothing is taken.
TEST_F(ShortPagesTest, AShortPacketIsAllOfItsMessage) {
  const auto give = [&](uint32_t psn, uint32_t index, bool is_last, bool is_short, uint32_t length) {
    const Placed placed = right.on_data(here, {.page = right.pages.take(),
                                               .psn = psn,
                                               .channel = 0,
                                               .place = {0, index},
                                               .backlog = 0,
                                               .took_credit = true,
                                               .is_last = is_last,
                                               .asks = false,
                                               .path = 0,
                                               .was_marked = false,
                                               .rail = 0,
                                               .queue = is_short ? PageQueue::kShort : PageQueue::kEager,
                                               .time = 0,
                                               .length_bytes = length});
    return placed.verdict;
  };
  EXPECT_EQ(give(0, 1, true, true, 10), Verdict::kStray);
  EXPECT_EQ(give(1, 0, false, true, kFullBytes), Verdict::kStray);
  EXPECT_EQ(give(2, 0, true, true, 10), Verdict::kTaken);
  EXPECT_EQ(give(3, 0, true, false, 10), Verdict::kStray);
  EXPECT_EQ(right.short_budget().parked(), 1U);
  EXPECT_EQ(right.budget().parked(), 0U);
}

// A message whose receive is missing stops neither its peer's other messages nor their numbers.
TEST_F(EngineCoreTest, AChannelWithoutReceivesHoldsUpNoOther) {
  const uint32_t other = left.open_send(there, 1), other_receiving = right.open_receive(here, 1);
  for (int i = 0; i < 30; ++i) left.send(channel, 2 * kFullBytes);
  run(10'000'000);
  for (int m = 0; m < 60; ++m) {
    const uint32_t receive = post_on(other_receiving, 100 * kFullBytes);
    const uint32_t send = left.send(other, 100 * kFullBytes);
    ASSERT_NE(send, kNoObject);
    run(300'000);
    ASSERT_EQ(right.receive_message(receive).state, ReceiveState::kDone) << "message " << m;
    consume(send, receive);
  }
  for (int i = 0; i < 30; ++i) post(2 * kFullBytes);
  run(1'000'000'000);
  EXPECT_EQ(left.statistics().sent_messages, 90U);
}

// Nothing but what a peer asks for tells the receiver of a message whose eager packets found no page.
TEST_F(EngineCoreTest, AnEagerPacketThatFindsNoPageIsGranted) {
  offer(3 * kFullBytes);
  run(50'000'000, [](const Datagram& datagram) { return datagram.is_eager(); });
  EXPECT_EQ(right.received.size(), 1U);
  EXPECT_EQ(left.sent.size(), 1U);
  EXPECT_LE(left.statistics().resent_packets, 3 * 3U) << "it does not try for ever";
}

TEST_F(EngineCoreTest, ALostGrantIsSaidAgain) {
  offer(100 * kFullBytes);
  uint32_t lost = 0;
  run(20'000'000, [&](const Datagram& datagram) {
    const bool is_grant = datagram.kind == Datagram::Kind::kAck && datagram.ack.grant_count != 0;
    return is_grant && ++lost <= 5;
  });
  EXPECT_EQ(right.received.size(), 1U);
  EXPECT_GT(left.statistics().sent_requests, 0U);
}

TEST_F(EngineCoreTest, AMessageThatIsClosedBetweenItsTellingsLeavesTheOthersTold) {
  std::vector<uint32_t> channels;
  std::vector<Wish> wishes;
  for (uint16_t wire = 1; wire <= 5; ++wire) {
    channels.push_back(right.open_receive(here, wire));
    post_on(channels.back(), 20 * kFullBytes);
    wishes.push_back({wire, 0, 20});
  }
  right.on_request(here, wishes);
  right.pump();  // all are told once, and the first of them again
  right.out.clear();
  right.close_receive(channels[1]);
  right.open_receive(here, 6);
  ask(here, {6, 0, 20});  // takes the memory of what was closed
  right.pump();
  std::vector<uint16_t> told;
  for (const Datagram& datagram : right.out)
    for (uint32_t i = 0; i < datagram.ack.grant_count; ++i) told.push_back(datagram.ack.grants[i].channel);
  EXPECT_EQ(told, (std::vector<uint16_t>{3, 4, 5}));
}

TEST_F(EngineCoreTest, ALostWishIsSaidAgain) {
  for (int i = 0; i < 20; ++i) left.send(channel, 10);
  run(1'000'000, [](const Datagram& datagram) { return datagram.kind == Datagram::Kind::kRequest; });
  for (int i = 0; i < 20; ++i) post(10);
  uint32_t lost = 0;
  run(100'000'000,
      [&](const Datagram& datagram) { return datagram.kind == Datagram::Kind::kRequest && ++lost <= 4; });
  EXPECT_EQ(right.received.size(), 20U);
}

// Who has asked in vain asks ever less often, until he hears something.
TEST_F(EngineCoreTest, AGrantThatIsLostIsAskedForSoonWhereAnotherHasCome) {
  for (int i = 0; i < 2; ++i) left.send(channel, 40 * kFullBytes);
  run(20'000'000, [](const Datagram& datagram) { return datagram.kind == Datagram::Kind::kRequest; });
  post(40 * kFullBytes);
  for (int i = 0; i < 20'000 && right.received.empty(); ++i) run(5'000);
  post(40 * kFullBytes);
  run(200'000, [](const Datagram& datagram) { return datagram.ack.grant_count != 0; });
  ASSERT_EQ(right.received.size(), 1U);
  run(4'000'000);
  EXPECT_EQ(right.received.size(), 2U);
}

TEST_F(EngineCoreTest, APacketThatIsOvertakenIsSentAgainOverAnotherPath) {
  offer(40 * kFullBytes);
  uint32_t lost_path = kPaths;
  std::map<uint32_t, std::vector<uint32_t>> paths_of;
  run(2'000'000, [&](const Datagram& datagram) {
    if (!datagram.is_data()) return false;
    paths_of[datagram.place.index].push_back(datagram.data.path);
    const bool is_lost = datagram.place.index == 12 && !datagram.data.is_resent;
    if (is_lost) lost_path = datagram.data.path;
    return is_lost;
  });
  EXPECT_EQ(right.received.size(), 1U);
  ASSERT_EQ(paths_of[12].size(), 2U);
  EXPECT_NE(paths_of[12][1], lost_path);
  EXPECT_EQ(left.statistics().resent_packets, 1U);
}

// In its send queue, while packets of a shorter one overtake it.
TEST_F(EngineCoreTest, APacketIsNotLostBeforeItHasLeft) {
  for (int i = 0; i < 3; ++i) post(15 * kFullBytes);
  left.send(channel, 15 * kFullBytes);
  left.first_waiting = 12, left.end_waiting = 15;
  std::vector<Datagram> waiting;
  const auto waits = [&](const Datagram& datagram) {
    const bool is_one = datagram.is_data() && datagram.place.message == 0 && datagram.place.index >= 12;
    if (is_one) waiting.push_back(datagram);
    return is_one;
  };
  run(0, waits);
  ASSERT_EQ(waiting.size(), 3U);
  for (int i = 0; i < 2; ++i) {  // soon enough after each other that no probe is sent
    pass_time(25'000);
    left.send(channel, 1);
    run();
  }
  EXPECT_EQ(left.statistics().resent_packets, 0U);
  left.let_go(2);
  deliver(right, here, waiting[1]);
  run(20'000);
  EXPECT_EQ(left.statistics().resent_packets, 0U) << "both left at the same time";
  pass_time(15'000);
  left.let_go(1);
  deliver(right, here, waiting[2]);
  run();
  EXPECT_EQ(left.statistics().resent_packets, 1U) << "overtaken, though by none that was posted later";
  EXPECT_EQ(left.statistics().probes, 0U);
  EXPECT_EQ(right.received.size(), 3U);
}

TEST_F(EngineCoreTest, TheLastPacketsLossIsFoundByAProbe) {
  offer(10);
  uint32_t lost = 0;
  run(2'000'000, [&](const Datagram& datagram) { return datagram.is_data() && ++lost <= 1; });
  EXPECT_EQ(right.received.size(), 1U);
  EXPECT_EQ(left.statistics().probes, 1U);
  EXPECT_EQ(left.statistics().timeouts, 0U);
}

// With one rail, too: a queue that is full takes no probe.
TEST_F(EngineCoreTest, AProbeWaitsForRoom) {
  send_now(1'000);
  ASSERT_EQ(left.count(Datagram::Kind::kData), 1U);
  const auto pass = [&](uint32_t room) {
    left.room = room;
    for (const int64_t end = left.now + 50'000; left.now < end; left.now += 1'000) {
      left.tick(left.now);
      left.pump();
    }
  };
  pass(0);
  EXPECT_EQ(left.count(Datagram::Kind::kData), 1U);
  left.now += 1'000'000;
  pass(1);
  EXPECT_GE(left.count(Datagram::Kind::kData), 2U);
}

// A path that has rested carries one packet. Whatever becomes of this packet, the path is tried again.
class TrialTest : public EngineCoreTest {
 protected:
  // The next packet tries a path, the only one that has woken.
  void rest_a_path() {
    PathTable& paths = left.peer(there).paths;
    paths.note_lost(kTried, make_stamp(left.now));
    ASSERT_TRUE(paths.note_lost(kTried, make_stamp(left.now)));
    left.now = right.now = left.now + 2'000'000;
  }
  // Short messages until the trial is under way, which is lost. False: none took the path.
  bool lose_the_trial() {
    for (int i = 0; i < 2 * static_cast<int>(kPaths); ++i) {
      bool is_tried = false;
      offer(10);
      run(1'000'000, [&](const Datagram& datagram) {
        const bool is_trial = datagram.is_data() && datagram.data.path == kTried;
        is_tried |= is_trial;
        return is_trial;
      });
      finish();
      if (is_tried) return true;
    }
    return false;
  }
  static constexpr uint32_t kTried = 5;
};

TEST_F(TrialTest, AProbeInTheTrialsPlaceLeavesItNotInUse) {
  rest_a_path();
  ASSERT_TRUE(lose_the_trial());
  EXPECT_GE(left.statistics().probes, 1U);
  EXPECT_EQ(left.peer(there).paths.tried(), 0U);
  run(1'000'000'000);
  ASSERT_TRUE(lose_the_trial()) << "the path has no second trial";
}

// Its outcome is that of the trial.
TEST_F(TrialTest, AProbeOverTheOnlyPathIsItsTrial) {
  left.set_paths(there, 1U << kTried, ~0U);
  rest_a_path();
  offer(10);
  std::vector<uint32_t> tried;
  run(1'000'000, [&](const Datagram& datagram) {
    if (!datagram.is_data()) return false;
    tried.push_back(left.peer(there).paths.tried());
    return tried.size() == 1;
  });
  EXPECT_EQ(left.statistics().probes, 1U);
  EXPECT_EQ(tried, (std::vector<uint32_t>{1U << kTried, 1U << kTried}));
  EXPECT_EQ(left.peer(there).paths.resting(), 0U);
  EXPECT_EQ(right.received.size(), 1U);
}

// It may have found no page: that says nothing of the path.
TEST_F(TrialTest, AnEagerPacketThatIsLostOnTrialLeavesItNotInUse) {
  rest_a_path();
  for (uint32_t i = 0; i < kPaths + 8; ++i) {  // soon enough after each other that no probe is sent
    offer(10);
    run(0, [&](const Datagram& datagram) { return datagram.is_data() && datagram.data.path == kTried; });
    finish();
    pass_time(25'000);
  }
  EXPECT_EQ(left.statistics().probes, 0U) << "others have overtaken it";
  EXPECT_GE(left.statistics().resent_packets, 1U);
  EXPECT_EQ(left.peer(there).paths.tried(), 0U);
  run(1'000'000'000);
  ASSERT_TRUE(lose_the_trial()) << "the path has no second trial";
}

TEST_F(EngineCoreTest, ALateOriginalWidensTheWindows) {
  offer(40 * kFullBytes);
  std::vector<Datagram> late;
  run(400'000, [&](const Datagram& datagram) {
    const bool is_late = datagram.is_data() && datagram.place.index == 12 && !datagram.data.is_resent;
    if (is_late) late.push_back(datagram);
    return is_late;
  });
  ASSERT_EQ(late.size(), 1U);
  const int64_t before = left.peer(there).loss.same_path_ns() + left.peer(there).loss.across_paths_ns();
  EXPECT_EQ(deliver(right, here, late[0]), Verdict::kDuplicate);
  run(100'000);
  EXPECT_EQ(left.statistics().in_vain, 1U);
  EXPECT_GE(left.peer(there).loss.same_path_ns() + left.peer(there).loss.across_paths_ns(), before);
}

TEST_F(EngineCoreTest, APeerThatIsSilentForTooLongIsTold) {
  left.send(channel, 10);
  for (int i = 0; i < 3'000 && left.silent.empty(); ++i) {
    pass_time(1'000'000);
    left.out.clear();
  }
  EXPECT_EQ(left.silent, std::vector<uint32_t>{there});
  left.mute_peer(there);
  const uint64_t before = left.statistics().sent_packets;
  for (int i = 0; i < 100; ++i) pass_time(10'000'000);
  EXPECT_EQ(left.statistics().sent_packets, before);
}

// Frozen together, as in a snapshot of a machine: whoever goes on first does not blame the other.
TEST_F(EngineCoreTest, OnesOwnPauseIsNotThePeersSilence) {
  constexpr int64_t kPauseNs = 60'000'000'000;
  post(2 * kFullBytes);
  send_now(2 * kFullBytes);
  left.out.clear();
  pass_time(5'000'000);
  left.out.clear();
  pass_time(kPauseNs);
  EXPECT_TRUE(left.silent.empty());
  run(100'000'000);
  EXPECT_EQ(left.sent.size(), 1U);
}

// Nor is a packet that had little time left before it.
TEST_F(EngineCoreTest, OnesOwnPauseIsNotThatOfAPacket) {
  const uint32_t full = offer(40 * kFullBytes).send;
  const uint32_t talk = left.open_send(there, 1), listening = right.open_receive(here, 1);
  const auto is_lost = [&](const Datagram& datagram) { return datagram.length_bytes == kFullBytes; };
  for (const int64_t end = left.now + left.options().silence_ns / 2; left.now < end;) {
    const uint32_t send = left.send(talk, 10), receive = post_on(listening, 10);
    run(50'000'000, is_lost);
    consume(send, receive);
  }
  pass_time(60'000'000'000);
  EXPECT_TRUE(left.stuck.empty());
  EXPECT_TRUE(left.silent.empty());
  run(1'000'000'000);
  EXPECT_EQ(left.send_message(full).state, SendState::kDone);
}

// A receiver that is there but has posted nothing is not silent.
TEST_F(EngineCoreTest, APeerThatAnswersIsNotSilent) {
  for (int i = 0; i < 20; ++i) left.send(channel, 10 * kFullBytes);
  run(10'000'000'000);
  EXPECT_TRUE(left.silent.empty());
}

// A switch whose MTU is below the ports' MTU: short packets arrive, full ones never do.
TEST_F(EngineCoreTest, AFullPacketThatNeverArrivesIsToldThoughShortOnesDo) {
  const uint32_t talk = left.open_send(there, 1), listening = right.open_receive(here, 1);
  uint32_t first = 0;
  const auto is_lost = [&](const Datagram& datagram) {
    return datagram.length_bytes == kFullBytes && datagram.place.index >= first;
  };
  for (const uint32_t packets : {2U, 40U}) {  // eager ones, and granted ones
    if (packets == 40) first = left.options().eager_packets;
    left.stuck.clear();
    const int64_t began_ns = left.now;
    const uint32_t full = offer(packets * kFullBytes).send;
    while (left.stuck.empty() && left.now < began_ns + 20'000'000'000) {
      const uint32_t send = left.send(talk, 10), receive = post_on(listening, 10);
      run(50'000'000, is_lost);
      ASSERT_EQ(left.send_message(send).state, SendState::kDone);
      consume(send, receive);
    }
    EXPECT_EQ(left.stuck, std::vector<uint32_t>{full}) << packets;
    EXPECT_GE(left.now - began_ns, left.options().silence_ns);
    EXPECT_LE(left.now - began_ns, 2 * left.options().silence_ns);
    run(1'000'000'000);
  }
  EXPECT_TRUE(left.silent.empty());
}

// Its packets go on as such of no message, which say that their numbers are taken.
TEST_F(EngineCoreTest, AChannelThatIsStoppedHoldsUpNoOther) {
  const uint32_t talk = left.open_send(there, 1), listening = right.open_receive(here, 1);
  const auto is_lost = [&](const Datagram& datagram) { return datagram.length_bytes == kFullBytes; };
  for (const uint32_t packets : {2U, 40U}) {
    offer(packets * kFullBytes);
    run(100'000'000, is_lost);
  }
  ASSERT_NE(left.peer(there).known + left.peer(there).eager_next - left.peer(there).eager_unacked, 0U);
  left.stop_send(channel);
  for (int i = 0; i < 100; ++i) {
    const uint32_t send = left.send(talk, 10), receive = post_on(listening, 10);
    run(50'000'000, is_lost);
    ASSERT_EQ(left.send_message(send).state, SendState::kDone) << i;
    consume(send, receive);
  }
  EXPECT_TRUE(left.stuck.empty());
  EXPECT_TRUE(left.silent.empty());
  EXPECT_EQ(left.peer(there).known, 0U);
  EXPECT_EQ(left.peer(there).eager_next, left.peer(there).eager_unacked);
  left.close_send(channel);
  EXPECT_EQ(left.peer(there).eager_reserved, left.peer(there).eager_next) << "no credit is lost";
}

TEST_F(EngineCoreTest, AChannelThatIsStoppedGivesBackItsCredits) {
  left.room = 0;
  left.send(channel, 5 * kFullBytes);
  ASSERT_EQ(left.peer(there).eager_reserved, 5U) << "they may leave, and have not";
  left.stop_send(channel);
  EXPECT_EQ(left.peer(there).eager_reserved, 0U);
  left.close_send(channel);
  EXPECT_EQ(left.peer(there).eager_reserved, 0U);
}

// No packet of it counts as arrived, so that its sender does not take it for sent.
TEST_F(EngineCoreTest, AChannelThatRefusesTakesNothingUntilItsSenderKnows) {
  post(kFullBytes);
  left.send(channel, 2 * kFullBytes);
  right.refuse_receive(receiving);
  uint32_t refused = 0;
  for (int i = 0; i < 50; ++i) {
    pass_time(100'000);
    exchange(right, left, there, {});
    for (const Datagram& datagram : std::exchange(left.out, {}))
      refused += deliver(right, here, datagram) == Verdict::kTooLong ? 1 : 0;
  }
  EXPECT_GE(refused, 4U) << "again and again";
  EXPECT_TRUE(left.sent.empty());
  left.stop_send(channel);
  run(100'000'000);
  EXPECT_EQ(left.peer(there).eager_next, left.peer(there).eager_unacked);
  right.close_receive(receiving);
  EXPECT_EQ(right.peer(here).eager_settled, left.peer(there).eager_reserved);
}

// With hardly any pages for what nobody has posted a receive for.
class EngineOfFewPagesTest : public EngineCoreTest {
 protected:
  EngineOfFewPagesTest() : EngineCoreTest(make_few()) {}
  static EngineOptions make_few() {
    EngineOptions options;
    options.pages.pages = 32;
    return options;
  }
};

// A receive may be posted as late as the application likes: only then the way counts.
TEST_F(EngineOfFewPagesTest, AnEagerPacketThatFindsNoPageIsNotOnTheWay) {
  left.send(channel, 8 * kFullBytes);
  run(10'000'000'000);
  EXPECT_FALSE(left.peer(there).held_back.is_empty());
  EXPECT_TRUE(left.stuck.empty());
  post(8 * kFullBytes);
  run(20'000'000, [](const Datagram& datagram) { return datagram.is_data(); });
  EXPECT_TRUE(left.peer(there).held_back.is_empty());
  EXPECT_TRUE(left.stuck.empty());
  run(100'000'000);
  EXPECT_EQ(right.received.size(), 1U);
}

// For so long it has waited for its receive, not for its peer.
TEST_F(EngineOfFewPagesTest, AChannelThatClosesWithPacketsHeldBackIsNotStuck) {
  left.send(channel, 8 * kFullBytes);
  run(3'000'000'000);
  ASSERT_FALSE(left.peer(there).held_back.is_empty());
  left.close_send(channel);
  run(1'000'000'000);
  EXPECT_TRUE(left.stuck.empty());
  EXPECT_TRUE(left.silent.empty());
  EXPECT_EQ(left.peer(there).eager_next, left.peer(there).eager_unacked);
}

TEST_F(EngineCoreTest, APacketMustFitItsReceive) {
  post(kFullBytes);
  send_now(2 * kFullBytes);
  EXPECT_EQ(deliver(right, here, left.out[0]), Verdict::kTooLong) << "it says what comes behind it";
  EXPECT_EQ(deliver(right, here, left.out[1]), Verdict::kTooLong);
  left.out.clear();
  left.send(channel, 2 * kFullBytes);
  run(1'000'000);
  const uint32_t late = right.post(receiving, kFullBytes, 2'048);
  EXPECT_TRUE(right.is_too_long(late)) << "what is parked";
}

// Where a packet lies counts, not how much is here.
TEST_F(EngineCoreTest, ALatePacketOfAMessageMustFitItsReceive) {
  const auto packets = send_apart(8 * kFullBytes);
  ASSERT_EQ(packets.size(), 8U);
  EXPECT_EQ(deliver(right, here, packets[7]), Verdict::kTaken);
  const uint32_t receive = right.post(receiving, kFullBytes, 0);
  EXPECT_TRUE(right.is_too_long(receive)) << "the last one is parked, the first one lost";
}

// A packet says how many come behind it, but not how long the last one is.
TEST_F(EngineCoreTest, AFirstPacketThatFitsDoesNotLetTheLastOneIn) {
  send_now(8 * kFullBytes);
  ASSERT_EQ(left.out.size(), 8U);
  EXPECT_EQ(deliver(right, here, left.out[0]), Verdict::kTaken);
  const uint32_t receive = right.post(receiving, 8 * kFullBytes - 1, 0);
  EXPECT_FALSE(right.is_too_long(receive));
  EXPECT_EQ(deliver(right, here, left.out[7]), Verdict::kTooLong);
}

TEST_F(EngineCoreTest, AMessageThatIsParkedIsTooLongByItsFirstPacket) {
  send_now(8 * kFullBytes);
  EXPECT_EQ(deliver(right, here, left.out[0]), Verdict::kTaken);
  EXPECT_TRUE(right.is_too_long(right.post(receiving, 7 * kFullBytes, 0)));
}

// The packets that fit would be granted, and no other: the sender's wish says nothing that can be relied on.
TEST_F(EngineCoreTest, AMessageIsTooLongThoughAllThatIsGrantedFits) {
  run();
  for (int i = 0; i < 8; ++i) left.send(channel, 10);  // no eager packet is left for the next
  const uint32_t next = left.send(channel, 40 * kFullBytes);
  run(2'000'000);
  for (int i = 0; i < 8; ++i) post(10);
  EXPECT_FALSE(right.is_too_long(post(20 * kFullBytes)));
  bool is_told = false;
  left.pump();
  for (int i = 0; i < 100 && !is_told; ++i) {
    pass_time(50'000);
    exchange(right, left, there, {});
    for (const Datagram& datagram : std::exchange(left.out, {}))
      is_told |= deliver(right, here, datagram) == Verdict::kTooLong;
  }
  EXPECT_TRUE(is_told);
  EXPECT_NE(left.send_message(next).state, SendState::kDone);
}

TEST_F(EngineCoreTest, PacketsThatMakeNoSenseAreRefused) {
  post(10 * kFullBytes);
  send_now(4 * kFullBytes);
  const Datagram first = left.out[0], last = left.out[3];
  const auto with = [&](const Datagram& origin, const std::function<void(Datagram&)>& change) {
    Datagram datagram = origin;
    change(datagram);
    return deliver(right, here, datagram);
  };
  EXPECT_EQ(with(first, [](Datagram& d) { d.length_bytes = 100; }), Verdict::kStray)
      << "a short one that is not the last";
  EXPECT_EQ(with(first, [](Datagram& d) { d.length_bytes = kFullBytes + 1; }), Verdict::kStray);
  EXPECT_EQ(with(first, [](Datagram& d) { d.channel = 7; }), Verdict::kRefused) << "its hello has not come";
  EXPECT_EQ(with(first, [](Datagram& d) { d.place.message = 100; }), Verdict::kRefused) << "too far ahead";
  EXPECT_EQ(with(first, [](Datagram& d) { d.place.message = 4'095; }), Verdict::kStray) << "consumed";
  EXPECT_EQ(with(first, [](Datagram& d) { d.data.psn = kEagerSpan; }), Verdict::kStray)
      << "no such number yet";
  EXPECT_EQ(with(first, [](Datagram& d) { d.data.took_credit = false, d.data.psn = kSpan; }),
            Verdict::kStray);
  EXPECT_EQ(deliver(right, here, last), Verdict::kTaken);
  EXPECT_EQ(with(first, [](Datagram& d) { d.place.index = 4; }), Verdict::kStray) << "behind the last";
  EXPECT_EQ(with(first, [](Datagram& d) { d.data.is_last = true, d.data.psn = 1; }), Verdict::kStray)
      << "a second last";
  EXPECT_EQ(deliver(right, here, first), Verdict::kTaken);
}

TEST_F(EngineCoreTest, PacketsThatContradictEachOtherAreRefused) {
  for (const bool is_parked : {false, true}) {
    const uint32_t sending = left.open_send(there, is_parked ? 2 : 1);
    const uint32_t other = right.open_receive(here, is_parked ? 2 : 1);
    if (!is_parked) post_on(other, 10 * kFullBytes);
    left.send(sending, 4 * kFullBytes);
    left.pump();
    ASSERT_EQ(left.out.size(), 4U);
    const auto packets = std::exchange(left.out, {});
    EXPECT_EQ(deliver(right, here, packets[2]), Verdict::kTaken);
    Datagram early = packets[1], more = packets[1];
    early.data.is_last = true;
    EXPECT_EQ(deliver(right, here, early), Verdict::kStray) << "one behind it is here";
    EXPECT_EQ(deliver(right, here, packets[3]), Verdict::kTaken);
    more.data.backlog = 3;
    EXPECT_EQ(deliver(right, here, more), Verdict::kStray) << "more behind it than there are";
    EXPECT_EQ(deliver(right, here, packets[1]), Verdict::kTaken);
    EXPECT_EQ(deliver(right, here, packets[0]), Verdict::kTaken);
  }
}

// A grant for as many would name another message.
TEST_F(EngineCoreTest, AMessageHasFewerPacketsThanAGrantCanName) {
  const uint32_t receive = post(uint64_t{kMaxPacketIndex} * kFullBytes);
  ask(here, {0, 0, kMaxPacketIndex});
  EXPECT_EQ(right.receive_message(receive).wanted, 0U);
  send_now(4 * kFullBytes);
  Datagram first = left.out[0];
  first.data.backlog = 2;
  first.place.index = kMaxPacketIndex - 3;
  EXPECT_EQ(deliver(right, here, first), Verdict::kStray);
  first.place.index = kMaxPacketIndex - 4;
  EXPECT_EQ(deliver(right, here, first), Verdict::kTaken);
}

// Of a message that had the same number before.
TEST_F(EngineCoreTest, AWishThatIsTooLargeDoesNoHarm) {
  const uint32_t receive = post(100 * kFullBytes);
  ask(here, {0, 0, 5'000});
  right.pump();
  EXPECT_GT(right.outstanding(), 4U);
  EXPECT_LE(right.outstanding(), 100U) << "there is no room for more";
  const auto packets = send_apart(4 * kFullBytes);
  ASSERT_EQ(packets.size(), 4U);
  EXPECT_EQ(deliver(right, here, packets[3]), Verdict::kTaken);
  EXPECT_GE(right.receive_message(receive).wanted, right.receive_message(receive).granted);
  right.pump();
  for (int i = 0; i < 3; ++i) deliver(right, here, packets[static_cast<size_t>(i)]);
  EXPECT_EQ(right.received, std::vector<uint32_t>{receive});
  EXPECT_EQ(right.outstanding(), 0U);
}

// For no bytes at all it may have a packet.
TEST_F(EngineCoreTest, AWishIsGrantedNoMoreThanTheReceiveHasRoomFor) {
  for (uint16_t number = 0; number < 8; ++number) {
    ask(here, {0, number, kMaxPacketIndex - 1});
  }
  for (int i = 0; i < 4; ++i) post(8);  // after the wish, and
  right.pump();
  EXPECT_EQ(right.outstanding(), 4U);
  for (int i = 0; i < 4; ++i) post(0);
  ask(here, {0, 2, kMaxPacketIndex - 1});  // before it
  right.pump();
  EXPECT_EQ(right.outstanding(), 8U);
}

// A peer that is given up leaves nothing that others would miss.
TEST_F(EngineCoreTest, GrantsAndPagesOfAGivenUpPeerAreTheOthers) {
  const uint32_t receive = post(200 * kFullBytes);
  send_now(200 * kFullBytes);
  exchange(left, right, here, {});
  right.pump();
  ASSERT_GT(right.outstanding(), 0U);
  ASSERT_EQ(right.budget().held(), 8U);
  right.mute_peer(here);
  EXPECT_EQ(right.outstanding(), 0U);
  EXPECT_EQ(right.budget().held(), 0U) << "they are copied";
  EXPECT_FALSE(right.grants().is_any_wanted());
  const uint32_t other = right.add_peer(~0U, kFullBytes);
  right.open_receive(other, 0);
  ASSERT_EQ(right.peer(other).receive_channels.size(), 1U);
  post_on(right.peer(other).receive_channels[0], 100 * kFullBytes);
  ask(other, {0, 0, 100});
  right.pump();
  EXPECT_GT(right.outstanding(), 50U);
  EXPECT_EQ(right.receive_message(receive).state, ReceiveState::kPosted);
}

TEST_F(EngineCoreTest, AcknowledgementsWithoutRoomStayDue) {
  constexpr uint32_t kPeers = 4;
  for (uint32_t i = 1; i < kPeers; ++i) right.add_peer(~0U, kFullBytes);
  post(200 * kFullBytes);
  send_now(200 * kFullBytes);
  exchange(left, right, here, {});
  for (uint32_t i = 1; i < kPeers; ++i) right.must_ack(here + i);
  right.ack_room = 0;
  right.pump();
  EXPECT_EQ(right.count(Datagram::Kind::kAck), 0U);
  right.ack_room = 3;
  pass_time(20'000);  // the delay of an acknowledgement, at most
  EXPECT_EQ(right.count(Datagram::Kind::kAck), 3U);
  right.ack_room = 3;
  pass_time(20'000);
  EXPECT_EQ(right.count(Datagram::Kind::kAck), kPeers);
  exchange(right, left, there, [](const Datagram& datagram) { return datagram.ack.grant_count == 0; });
  EXPECT_GT(left.send_message(left.send_channel(channel).ring * kRing).granted, 0U) << "the grant";
}

TEST_F(EngineCoreTest, NothingIsSentToAGivenUpPeer) {
  offer(200 * kFullBytes);
  run(100'000, [](const Datagram& datagram) { return datagram.kind == Datagram::Kind::kAck; });
  for (int i = 0; i < 20; ++i) left.send(channel, 10);
  left.room = 0;
  left.pump();
  ASSERT_TRUE(left.has_packets_to_send());
  left.mute_peer(there);
  left.room = 1;
  left.out.clear();
  EXPECT_FALSE(left.has_packets_to_send());
  for (int i = 0; i < 100; ++i) pass_time(1'000'000);
  EXPECT_TRUE(left.out.empty());
  left.close_send(channel);
  left.pump();
  EXPECT_TRUE(left.out.empty());
}

// An engine that is met again has a greater number than before, whichever numbers are free.
TEST_F(EngineCoreTest, NumbersOfRemovedPeersAreGivenAgain) {
  const uint32_t low = left.add_peer(~0U, kFullBytes), high = left.add_peer(~0U, kFullBytes),
                 highest = left.add_peer(~0U, kFullBytes);
  left.remove_peer(highest);
  left.remove_peer(low);
  EXPECT_EQ(left.add_peer(~0U, kFullBytes, high + 1), highest);
  EXPECT_EQ(left.add_peer(~0U, kFullBytes, high + 1), highest + 1) << "it is below";
  EXPECT_EQ(left.add_peer(~0U, kFullBytes), low);
  EXPECT_EQ(left.peers(), 5U);
}

TEST_F(EngineCoreTest, AClosedReceiveAcknowledgesAndDrops) {
  post(10 * kFullBytes);
  auto packets = send_apart(4 * kFullBytes);
  deliver(right, here, packets[0]);
  right.close_receive(receiving);
  EXPECT_EQ(right.budget().held(), 0U);
  for (int i = 1; i < 4; ++i)
    EXPECT_EQ(deliver(right, here, packets[static_cast<size_t>(i)]), Verdict::kDropped);
  run();
  EXPECT_EQ(left.sent.size(), 1U) << "the sender is not held up";
  EXPECT_EQ(left.peer(there).eager_limit, 12U) << "nor are its eager credits lost";
  right.forget_receive(receiving);
}

// The port has ended its copies; it says nothing more of them.
TEST_F(EngineCoreTest, AClosedReceiveGivesBackWhatWasBeingCopied) {
  const uint32_t receive = post(10 * kFullBytes, 0);
  const auto packets = send_apart(4 * kFullBytes);
  for (const Datagram& packet : packets) deliver(right, here, packet);
  EXPECT_EQ(right.receive_message(receive).state, ReceiveState::kMoving);
  EXPECT_EQ(right.budget().moving(), 4U);
  const uint32_t idle = right.idle();
  right.close_receive(receiving);
  EXPECT_EQ(right.budget().moving(), 0U);
  EXPECT_EQ(right.idle(), idle + 4);
  EXPECT_TRUE(right.received.empty());
}

// What a channel that closes had under way is a hole in the numbers, which has to be filled for the others.
TEST_F(EngineCoreTest, AClosedSendLeavesNoHole) {
  const uint32_t other = left.open_send(there, 1), other_receiving = right.open_receive(here, 1);
  offer(100 * kFullBytes);
  // Its eager packets and many granted ones get lost.
  uint32_t granted = 0;
  run(60'000, [&](const Datagram& datagram) {
    if (!datagram.is_data()) return false;
    return datagram.data.kind == PacketKind::kGranted ? ++granted > 10 : datagram.place.index >= 4;
  });
  left.close_send(channel);
  left.out.clear();
  const uint32_t receive = post_on(other_receiving, 3'000ULL * kFullBytes);
  left.send(other, 3'000ULL * kFullBytes);
  run(100'000'000);
  EXPECT_EQ(right.receive_message(receive).state, ReceiveState::kDone);
  EXPECT_EQ(left.peer(there).unacked, left.peer(there).next);
  EXPECT_EQ(left.peer(there).eager_unacked, left.peer(there).eager_next);
  right.close_receive(receiving);
  run(10'000'000);
  EXPECT_EQ(left.peer(there).eager_limit - left.peer(there).eager_reserved, 8U) << "all credits are back";
}

TEST_F(EngineCoreTest, MessagesThatAreNotUnpackedAreCopied) {
  const uint32_t receive = post(10 * kFullBytes, 0);
  left.send(channel, 10 * kFullBytes);
  run();
  EXPECT_EQ(right.receive_message(receive).state, ReceiveState::kDone);
  EXPECT_EQ(right.receive_message(receive).lent, 0U);
  EXPECT_EQ(right.statistics().copied_messages, 1U);
  EXPECT_EQ(right.statistics().evacuations, 0U) << "by choice, not for want of pages";
  // So are those with more pages than their slot describes.
  const uint32_t long_one = post(10 * kFullBytes, 5);
  left.send(channel, 10 * kFullBytes);
  run();
  EXPECT_EQ(right.receive_message(long_one).state, ReceiveState::kDone);
  EXPECT_EQ(right.receive_message(long_one).lent, 0U);
}

// In the order of their arrival, each where it belongs; each page comes back once.
TEST_F(EngineCoreTest, PagesAreCopiedAsTheyArrived) {
  constexpr uint64_t kBytes = 3 * kFullBytes + 10;
  const size_t pages = right.pages.count();
  post(kBytes, 0);
  const auto packets = send_apart(kBytes);
  ASSERT_EQ(packets.size(), 4U);
  for (const size_t index : {1, 0, 3, 2}) deliver(right, here, packets[index]);
  EXPECT_EQ(right.copied_to, (std::vector<uint64_t>{kFullBytes, 0, 3 * kFullBytes, 2 * kFullBytes}));
  EXPECT_EQ(right.copied_bytes, kBytes);
  EXPECT_EQ(right.pages.count(), pages - 4);
  EXPECT_TRUE(right.received.empty());
  right.end_moves();
  EXPECT_EQ(right.pages.count(), pages);
  EXPECT_EQ(right.received.size(), 1U);
}

TEST_F(EngineCoreTest, PagesThatAreLentComeBackWhenTheyAreReleased) {
  const size_t pages = right.pages.count();
  const uint32_t receive = post(2 * kFullBytes);
  send_now(2 * kFullBytes);
  for (const Datagram& datagram : std::exchange(left.out, {})) deliver(right, here, datagram);
  ASSERT_EQ(right.received, std::vector<uint32_t>{receive});
  std::vector<std::pair<uint64_t, uint32_t>> lent;
  right.for_each_page(receive,
                      [&](uint32_t, uint64_t offset, uint32_t bytes) { lent.emplace_back(offset, bytes); });
  EXPECT_EQ(lent, (std::vector<std::pair<uint64_t, uint32_t>>{{0, kFullBytes}, {kFullBytes, kFullBytes}}));
  EXPECT_EQ(right.pages.count(), pages - 2);
  right.release(receive);
  EXPECT_EQ(right.pages.count(), pages);
}

// Those that are parked, held and lent.
TEST_F(EngineCoreTest, PagesOfAChannelThatClosesComeBack) {
  const size_t pages = right.pages.count();
  post(10);
  post(3 * kFullBytes);
  for (const uint64_t bytes : {uint64_t{10}, uint64_t{3} * kFullBytes, uint64_t{10}})
    left.send(channel, bytes);
  left.pump();
  const auto packets = std::exchange(left.out, {});
  ASSERT_EQ(packets.size(), 5U);
  for (const size_t index : {0, 1, 4}) EXPECT_EQ(deliver(right, here, packets[index]), Verdict::kTaken);
  EXPECT_EQ(right.budget().lent(), 1U);
  EXPECT_EQ(right.budget().held(), 1U);
  EXPECT_EQ(right.budget().parked(), 1U);
  EXPECT_EQ(right.pages.count(), pages - 3);
  right.close_receive(receiving);
  EXPECT_EQ(right.pages.count(), pages);
}

TEST_F(EngineCoreTest, NumbersOfMessagesWrap) {
  for (uint32_t m = 0; m < kMessageNumbers + 100; ++m) {
    const auto [send, receive] = offer(10);
    run();
    ASSERT_EQ(right.receive_message(receive).state, ReceiveState::kDone) << m;
    consume(send, receive);
  }
}

TEST_F(EngineCoreTest, RequestsMayBeTakenBackInAnyOrder) {
  std::vector<uint32_t> receives, sends;
  for (int i = 0; i < 8; ++i) {
    receives.push_back(post(10));
    sends.push_back(left.send(channel, 10));
  }
  run();
  for (int i = 7; i >= 0; --i) {
    right.release(receives[static_cast<size_t>(i)]);
    left.forget(sends[static_cast<size_t>(i)]);
  }
  for (int i = 0; i < 32; ++i) {
    EXPECT_NE(right.post(receiving, 10, 1), kNoObject) << i;
    EXPECT_NE(left.send(channel, 10), kNoObject) << i;
  }
  EXPECT_EQ(right.post(receiving, 10, 1), kNoObject) << "a ring is full";
  EXPECT_EQ(left.send(channel, 10), kNoObject);
}

// What was said once and comes again, from anywhere in the past, changes nothing.
TEST_F(EngineCoreTest, OldAcknowledgementsAreHarmless) {
  std::vector<Datagram> old;
  for (int m = 0; m < 50; ++m) {
    const auto [send, receive] = offer(20 * kFullBytes);
    run(0, [&](const Datagram& datagram) {
      if (!datagram.is_data()) old.push_back(datagram);
      return false;
    });
    consume(send, receive);
  }
  send_now(500 * kFullBytes);
  for (const Datagram& datagram : old)
    if (datagram.kind == Datagram::Kind::kAck) deliver(left, there, datagram);
  left.out.clear();
  EXPECT_EQ(left.sent.size(), 50U);
  EXPECT_TRUE(left.send_message(left.send_channel(channel).ring * kRing + 50 % kRing).acked == 0);
  for (const Datagram& datagram : old)
    if (datagram.kind == Datagram::Kind::kRequest) deliver(right, here, datagram);
  post(500 * kFullBytes);
  run(10'000'000);
  EXPECT_EQ(left.sent.size(), 51U);
  // Nor does one of what was never sent.
  Datagram lie = old.back();
  lie.ack.cumulative = left.peer(there).next + 100;
  deliver(left, there, lie);
  EXPECT_EQ(left.statistics().strays, 1U);
}

TEST(EngineStateTest, APeerThatIsBusyTakesLessThanSixKibibytes) {
  EXPECT_LE(sizeof(Peer), 1'700U) << "an idle one";
  // One connection each way with open messages, and a window of packets under way.
  EXPECT_LE(sizeof(Peer) + sizeof(RecordTable) + sizeof(SendRing), 6'144U);
  EXPECT_LE(sizeof(Peer) + sizeof(ReceiveRing), 6'144U);
}

}  // namespace
}  // namespace verbena::protocol::datagram
