// Receives of up to eight buffers a request, matched by tag at the sender, through every version's table:
// what NCCL does on connections that several ranks share (maxRecvs 8, where the GPU unpacks nothing).
#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {
namespace {

constexpr int kMost = 8;

// One buffer of a receive, and the send that fills it.
struct Part {
  int tag = 0;
  size_t length_bytes = 0;
  std::span<std::byte> message, room;  // the room is longer, and guarded
  void* send = nullptr;
};
using Group = std::vector<Part>;

template <typename V>
class GroupedTest : public LiveTest<V> {
 protected:
  void SetUp() override {
    this->environment_.set("VERBENA_UNPACK", "0");
    this->environment_.set("VERBENA_PEER_GRACE_MS", "100");
    LiveTest<V>::SetUp();
    connection_ = this->start_connected(0, HandleShape::kNull);
  }

  Group make_group(const std::vector<std::pair<int, size_t>>& parts) {
    Group group;
    for (const auto& [tag, length_bytes] : parts) {
      const size_t place = next_place_++ % (LiveConnection<V>::kBufferBytes / place_bytes_) * place_bytes_;
      Part part{tag, length_bytes, connection_->sent.bytes.subspan(place, length_bytes),
                connection_->received.bytes.subspan(place, length_bytes + tools::kGuardLengthBytes), nullptr};
      tools::fill_pattern(part.message, place);
      tools::fill_guard(part.room);
      group.push_back(part);
    }
    return group;
  }
  // Null: not now, or an error, which is in connection_->result.
  void* post(const Group& group, size_t room_bytes = SIZE_MAX) {
    std::array<void*, kMost> data{}, mhandles{};
    std::array<size_t, kMost> sizes{};
    std::array<int, kMost> tags{};
    for (size_t i = 0; i < group.size(); ++i) {
      data[i] = group[i].room.data();
      mhandles[i] = connection_->received.mhandle;
      sizes[i] = std::min(room_bytes, group[i].length_bytes);
      tags[i] = group[i].tag;
    }
    void* request = this;
    connection_->result =
        this->net_->irecv(connection_->recv_comm, static_cast<int>(group.size()), data.data(), sizes.data(),
                          tags.data(), mhandles.data(), &request);
    return request;
  }
  bool send(Part& part) {
    connection_->result = this->net_->isend(connection_->send_comm, part.message.data(), part.message.size(),
                                            part.tag, connection_->sent.mhandle, &part.send);
    return part.send != nullptr;
  }
  bool send_soon(Part& part) {
    return poll_until([&] { return send(part) || connection_->result != abi::kSuccess; }) &&
           part.send != nullptr;
  }
  // All of it is there, with every size, and nothing beside it.
  void finish(Group& group, void* request) {
    int sizes[abi::kMaxTestSizes] = {};
    std::fill(std::begin(sizes) + static_cast<ptrdiff_t>(group.size()), std::end(sizes), 77);
    // Sends that were taken may not have been posted yet: their tests post them.
    std::vector<int> is_sent(group.size()), sent_bytes(group.size());
    int has_come = 0;
    const auto is_done = [&](void* of, int* done, int* size) {
      if (*done == 0 && connection_->result == abi::kSuccess)
        connection_->result = (*this->net_)->test(of, done, size);
      return *done != 0;
    };
    ASSERT_TRUE(poll_until([&] {
      bool is_all = is_done(request, &has_come, sizes);
      for (size_t i = 0; i < group.size(); ++i) is_all &= is_done(group[i].send, &is_sent[i], &sent_bytes[i]);
      return is_all || connection_->result != abi::kSuccess;
    }));
    ASSERT_EQ(connection_->result, abi::kSuccess);
    for (size_t i = 0; i < group.size(); ++i) {
      EXPECT_EQ(sizes[i], static_cast<int>(group[i].length_bytes)) << i;
      EXPECT_EQ(
          tools::check_pattern(group[i].room.first(group[i].length_bytes), seed_of(group[i])).wrong_bytes, 0u)
          << i;
      EXPECT_EQ(tools::count_wrong_guard_bytes(group[i].room.subspan(group[i].length_bytes)), 0u) << i;
      EXPECT_EQ(sent_bytes[i], static_cast<int>(group[i].length_bytes));
    }
    EXPECT_EQ(sizes[group.size()], 77);
    EXPECT_EQ((*this->net_)->irecv_consumed(connection_->recv_comm, static_cast<int>(group.size()), request),
              abi::kSuccess);
  }
  uint64_t seed_of(const Part& part) const {
    return static_cast<uint64_t>(part.message.data() - connection_->sent.bytes.data());
  }
  abi::Result test_once(void* request) {
    int done = 0, sizes[abi::kMaxTestSizes] = {};
    const abi::Result result = (*this->net_)->test(request, &done, sizes);
    EXPECT_EQ(done, 0);
    return result;
  }

  LiveConnection<V>* connection_ = nullptr;
  size_t place_bytes_ = 128 << 10;
  size_t next_place_ = 0;
  std::mt19937 random_{1};
};
TYPED_TEST_SUITE(GroupedTest, AllVersions, VersionNames);

TYPED_TEST(GroupedTest, EightAreOffered) {
  typename TypeParam::Properties properties;
  ASSERT_EQ((*this->net_)->get_properties(0, &properties), abi::kSuccess);
  EXPECT_EQ(properties.max_recvs, kMost);
}

TYPED_TEST(GroupedTest, EveryCountAndSizeInEveryOrder) {
  constexpr size_t kLengths[] = {0, 1, 7, 4096, 8193, 100'000, 13, 65536};
  for (int round = 0; round < 40; ++round) {
    std::vector<std::pair<int, size_t>> parts;
    for (int i = 0; i < 1 + round % kMost; ++i) parts.push_back({i * 3 - 5, kLengths[(round + i) % 8]});
    Group group = this->make_group(parts);
    void* request = this->post(group);
    ASSERT_NE(request, nullptr);
    std::vector<size_t> order(group.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), this->random_);
    for (const size_t i : order) ASSERT_TRUE(this->send_soon(group[i])) << i;
    this->finish(group, request);
  }
  EXPECT_TRUE(LogCapture::get().take_warnings().empty());
}

// A rank that has nothing to send yet does not hold up the others.
TYPED_TEST(GroupedTest, ASendFillsTheOldestReceiveOfItsTag) {
  std::vector<Group> groups;
  groups.push_back(this->make_group({{1, 100}, {2, 200}}));
  groups.push_back(this->make_group({{3, 300}, {1, 400}, {3, 500}}));
  groups.push_back(this->make_group({{1, 600}}));
  std::vector<void*> requests;
  for (Group& group : groups) requests.push_back(this->post(group));
  ASSERT_TRUE(this->send_soon(groups[1][0]));
  ASSERT_TRUE(this->send_soon(groups[0][0]));
  ASSERT_TRUE(this->send_soon(groups[1][1]));
  ASSERT_TRUE(this->send_soon(groups[2][0]));
  this->finish(groups[2], requests[2]);
  ASSERT_TRUE(this->send_soon(groups[1][2]));
  this->finish(groups[1], requests[1]);
  EXPECT_EQ(this->test_once(requests[0]), abi::kSuccess);
  ASSERT_TRUE(this->send_soon(groups[0][1]));
  this->finish(groups[0], requests[0]);
}

TYPED_TEST(GroupedTest, ASendWithoutAReceiveComesAgain) {
  Group one = this->make_group({{1, 1000}}), two = this->make_group({{2, 2000}});
  for (int i = 0; i < 1000; ++i) {
    ASSERT_FALSE(this->send(one[0]));
    ASSERT_EQ(this->connection_->result, abi::kSuccess);
  }
  void* second = this->post(two);
  ASSERT_TRUE(this->send_soon(two[0]));
  EXPECT_FALSE(this->send(one[0]));
  this->finish(two, second);
  void* first = this->post(one);
  ASSERT_TRUE(this->send_soon(one[0]));
  this->finish(one, first);
  EXPECT_TRUE(LogCapture::get().take_warnings().empty());
}

// More than the ring holds are asked for, sent and finished in any order.
TYPED_TEST(GroupedTest, ManyGroupsInFlight) {
  this->place_bytes_ = 32 << 10;
  constexpr int kTags = 4, kRounds = 150;
  struct Open {
    Group group;
    void* request;
  };
  constexpr size_t kMaxOpen = 8;  // up to 40 messages: the ring has room for 32
  std::vector<Open> open;
  Group next;
  std::vector<Part*> unsent[kTags];
  const auto drop_sent = [&](int tag) { unsent[tag].erase(unsent[tag].begin()); };
  for (int posted = 0, finished = 0; finished < kRounds;) {
    if (posted < kRounds && open.size() < kMaxOpen) {
      if (next.empty()) {
        std::vector<std::pair<int, size_t>> parts(1 + this->random_() % 5);
        for (auto& [tag, bytes] : parts) {
          tag = static_cast<int>(this->random_() % kTags);
          bytes = this->random_() % 20'000;
        }
        next = this->make_group(parts);
      }
      if (void* request = this->post(next); request != nullptr) {
        ++posted;
        open.push_back({std::exchange(next, {}), request});
        for (Part& part : open.back().group) unsent[part.tag].push_back(&part);
      }
      ASSERT_EQ(this->connection_->result, abi::kSuccess);
    }
    const int tag = static_cast<int>(this->random_() % kTags);
    if (!unsent[tag].empty() && this->send(*unsent[tag].front())) drop_sent(tag);
    for (size_t i = 0; i < open.size(); ++i) {
      const bool is_sent = std::all_of(open[i].group.begin(), open[i].group.end(),
                                       [](const Part& part) { return part.send != nullptr; });
      if (!is_sent) continue;
      this->finish(open[i].group, open[i].request);
      open.erase(open.begin() + static_cast<ptrdiff_t>(i));
      ++finished;
      break;
    }
  }
}

TYPED_TEST(GroupedTest, ALongerSendIsAnErrorAndWritesNothing) {
  Group group = this->make_group({{1, 4096}, {2, 4096}});
  void* request = this->post(group, 100);
  ASSERT_NE(request, nullptr);
  poll_until([&] { return this->send(group[1]) || this->connection_->result != abi::kSuccess; });
  if (this->connection_->result == abi::kSuccess) {
    EXPECT_FALSE(this->connection_->wait(group[1].send, nullptr));
  }
  EXPECT_EQ(this->connection_->result, abi::kInvalidUsage);
  for (const Part& part : group) EXPECT_EQ(tools::count_wrong_guard_bytes(part.room), 0u);
  const auto lines = LogCapture::get().take_warnings();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("4096"), std::string::npos) << lines[0];
}

TYPED_TEST(GroupedTest, ASenderThatGoesInTheMiddleIsAnError) {
  Group group = this->make_group({{1, 50'000}, {2, 50'000}, {3, 50'000}});
  void* request = this->post(group);
  ASSERT_TRUE(this->send_soon(group[1]) && this->connection_->wait(group[1].send, nullptr));
  ASSERT_TRUE(this->connection_->close_send());
  EXPECT_FALSE(this->connection_->wait(request, nullptr));
  EXPECT_EQ(this->connection_->result, abi::kRemoteError);
}

TYPED_TEST(GroupedTest, AReceiverThatClosesOpenGroupsIsAnError) {
  Group group = this->make_group({{1, 50'000}, {2, 50'000}}), other = this->make_group({{3, 10}});
  ASSERT_NE(this->post(group), nullptr);
  ASSERT_NE(this->post(other), nullptr);
  ASSERT_TRUE(this->send_soon(group[0]));
  this->connection_->deregister_receives();
  ASSERT_TRUE(this->connection_->close_recv());
  Part stranger = this->make_group({{9, 10}})[0];
  EXPECT_FALSE(this->send_soon(stranger));
  EXPECT_EQ(this->connection_->result, abi::kRemoteError);
}

TYPED_TEST(GroupedTest, WhatIsNoGroupIsRefused) {
  this->connection_->result = abi::kSuccess;
  void* data[9] = {};
  void* mhandles[9] = {};
  size_t sizes[9] = {};
  int tags[9] = {};
  const auto set = [&](size_t i) {
    data[i] = this->connection_->received.bytes.data();
    mhandles[i] = this->connection_->received.mhandle;
    sizes[i] = 64;
  };
  for (size_t i = 0; i < 9; ++i) set(i);
  const auto expect_refused = [&](int n) {
    void* request = nullptr;
    const abi::Result result =
        this->net_->irecv(this->connection_->recv_comm, n, data, sizes, tags, mhandles, &request);
    EXPECT_TRUE(result == abi::kInvalidUsage || result == abi::kInvalidArgument) << result;
    EXPECT_EQ(request, nullptr);
    EXPECT_EQ(LogCapture::get().take_warnings().size(), 1u);
  };
  for (const int n : {0, -1, 9}) expect_refused(n);
  mhandles[5] = nullptr;
  expect_refused(8);
  set(5);
  data[7] = this->connection_->received.bytes.data() - 1;
  expect_refused(8);
  EXPECT_EQ(this->connection_->transfer(4096, 0, 0), nullptr);
}

TYPED_TEST(GroupedTest, AFlushOfManyEndsOrIsNotNeeded) {
  void* data[kMost];
  void* mhandles[kMost];
  int sizes[kMost] = {0, 64, 0, 1, 0, 0, 0, 0};
  for (int i = 0; i < kMost; ++i) {
    data[i] = this->connection_->received.bytes.data() + i * 64;
    mhandles[i] = this->connection_->received.mhandle;
  }
  for (const int n : {1, 2, kMost}) {
    void* request = this;
    ASSERT_EQ((*this->net_)->iflush(this->connection_->recv_comm, n, data, sizes, mhandles, &request),
              abi::kSuccess);
    if (request != nullptr) {
      EXPECT_TRUE(this->connection_->wait(request, nullptr));
    }
  }
}

}  // namespace
}  // namespace verbena::nccl::testing
