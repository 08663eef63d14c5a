// Messages of every length and alignment between two processes, over every kind of connection.
#include <gtest/gtest.h>

#include "transport/support/processes.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

enum class Paths { kAny, kBoth, kOnlyDirect, kOnlyStaged };

struct Shape {
  const char* name;
  int sending_rails = 1, receiving_rails = 1;
  bool unpacks = true;
  Settings settings;
  Paths paths = Paths::kAny;  // that the messages must have taken, empty ones aside
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

std::vector<size_t> list_lengths(size_t page_bytes) {
  std::vector<size_t> lengths = {0, 1, 2, 3, 7, 8};
  for (const size_t middle : {size_t{16}, size_t{64}, size_t{128}, size_t{4096}, page_bytes, size_t{65536}}) {
    lengths.insert(lengths.end(), {middle - 1, middle, middle + 1});
  }
  lengths.insert(lengths.end(),
                 {4 * page_bytes - 1, 4 * page_bytes, 131072 + 3, 1 << 20, (4 << 20) - 1, 4 << 20});
  return lengths;
}

void expect_paths(const Statistics& statistics, Paths paths) {
  if (paths == Paths::kAny) return;
  EXPECT_EQ(statistics.sent_direct().bytes == 0, paths == Paths::kOnlyStaged);
  EXPECT_EQ(statistics.sent_staged().bytes == 0, paths == Paths::kOnlyDirect);
}

void run_transfer(const Shape& shape, const Transfer& transfer) {
  const Part sending{[&](Channel& channel) {
    auto [host, nic] = OwnNic(shape.sending_rails, shape.settings);
    const auto sender = connect(nic, channel.hear<protocol::Handle>());
    SendingSide side(*sender, nic, transfer);
    EXPECT_TRUE(poll_until([&] { return side.step(); }));
    EXPECT_EQ(side.status(), base::Status::kOk);
    expect_paths(sender->statistics(), shape.paths);
    channel.meet();
  }};
  const Part receiving{[&](Channel& channel) {
    auto [host, nic] = OwnNic(shape.receiving_rails, shape.settings);
    AcceptedEnd end = accept(channel, nic, shape.unpacks);
    ReceivingSide side(end, nic, transfer);
    EXPECT_TRUE(poll_until([&] { return side.step(); }));
    EXPECT_EQ(side.status(), base::Status::kOk);
    EXPECT_EQ(side.problem(), "");
    channel.meet();
  }};
  run_processes(sending, receiving);
}

class TransferTest : public testing::TestWithParam<Shape> {};

TEST_P(TransferTest, EveryLength) {
  Transfer transfer;
  for (const size_t length : list_lengths(16384)) {
    transfer.messages.push_back({.length_bytes = length, .extra_room_bytes = length % 3 * 50});
  }
  run_transfer(GetParam(), transfer);
}

TEST_P(TransferTest, EveryAlignment) {
  Transfer transfer;
  transfer.sends_ahead = transfer.receives_ahead = kUnpackQueueDepthSlots;
  for (const size_t length : {15, 4097, 90'000}) {
    for (uint32_t shifts = 0; shifts < 256; ++shifts) {
      transfer.messages.push_back(
          {.length_bytes = length, .source_shift = shifts % 16, .target_shift = shifts / 16});
    }
  }
  run_transfer(GetParam(), transfer);
}

const Shape kShapes[] = {
    {.name = "ImmediatesBehindTheirBytes",
     .sending_rails = 2,
     .receiving_rails = 2,
     .unpacks = false,
     .settings = {{"VERBENA_ADAPTIVE_ROUTING", "1"}, {"VERBENA_MIN_STRIPE_BYTES", "4k"}},
     .paths = Paths::kOnlyDirect},
    {.name = "ImmediatesBehindTheirBytesAndPages",
     .settings = {{"VERBENA_ADAPTIVE_ROUTING", "1"}, {"VERBENA_AR_THRESHOLD", "0"}}},
    {.name = "QueuePairsInTurn",
     .unpacks = false,
     .settings = {{"VERBENA_QPS_PER_CONNECTION", "4"}},
     .paths = Paths::kOnlyDirect},
    {.name = "AllQueuePairsAtOnce",
     .unpacks = false,
     .settings = {{"VERBENA_QPS_PER_CONNECTION", "4"}, {"VERBENA_SPLIT_DATA_ON_QPS", "1"}},
     .paths = Paths::kOnlyDirect},
    {.name = "Default", .settings = {}, .paths = Paths::kBoth},
    {.name = "NothingStaged", .settings = {{"VERBENA_UNPACK_THRESHOLD", "0"}}, .paths = Paths::kOnlyDirect},
    {.name = "NobodyUnpacks", .unpacks = false, .settings = {}, .paths = Paths::kOnlyDirect},
    {.name = "AllStagedInSmallPages",
     .settings = {{"VERBENA_UNPACK_THRESHOLD", "unlimited"}, {"VERBENA_PAGE_BYTES", "4k"}},
     .paths = Paths::kOnlyStaged},
    {.name = "AllStagedInLargePages",
     .settings = {{"VERBENA_UNPACK_THRESHOLD", "unlimited"},
                  {"VERBENA_PAGE_BYTES", "64k"},
                  {"VERBENA_BOUNCE_BYTES", "32m"}},
     .paths = Paths::kOnlyStaged},
    {.name = "TwoRails", .sending_rails = 2, .receiving_rails = 2, .settings = {}, .paths = Paths::kBoth},
    {.name = "ThreeRailsAllStaged",
     .sending_rails = 3,
     .receiving_rails = 3,
     .settings = {{"VERBENA_UNPACK_THRESHOLD", "unlimited"}, {"VERBENA_MIN_STRIPE_BYTES", "4k"}}},
    {.name = "FourRails",
     .sending_rails = 4,
     .receiving_rails = 4,
     .settings = {{"VERBENA_MIN_STRIPE_BYTES", "4k"}},
     .paths = Paths::kBoth},
    {.name = "OneRailToTwo", .sending_rails = 1, .receiving_rails = 2, .settings = {}, .paths = Paths::kBoth},
    {.name = "TwoRailsToOne",
     .sending_rails = 2,
     .receiving_rails = 1,
     .settings = {{"VERBENA_UNPACK_THRESHOLD", "unlimited"}}},
    {.name = "ThreeRailsToTwo",
     .sending_rails = 3,
     .receiving_rails = 2,
     .settings = {{"VERBENA_MIN_STRIPE_BYTES", "4k"}, {"VERBENA_QPS_PER_CONNECTION", "2"}}},
    {.name = "SmallWindow",
     .settings = {{"VERBENA_UNPACK_THRESHOLD", "unlimited"}, {"VERBENA_WINDOW_PAGES", "10"}}},
};

INSTANTIATE_TEST_SUITE_P(Shapes, TransferTest, testing::ValuesIn(kShapes),
                         [](const auto& shape) { return std::string(shape.param.name); });

TEST(LongTransfer, SixtyFourMegabytesStripedAndAsOne) {
  Transfer transfer;
  transfer.sends_ahead = transfer.receives_ahead = 1;
  transfer.messages = {{.length_bytes = 64 << 20}, {.length_bytes = (64 << 20) - 1, .target_shift = 5}};
  Shape shape{.name = "", .settings = {}, .paths = Paths::kOnlyDirect};
  run_transfer(shape, transfer);
  shape.sending_rails = shape.receiving_rails = 2;
  run_transfer(shape, transfer);
}

// A listener of a build that has room for more messages and queue pairs than we have.
TEST(Limits, AnEndGoesByThoseOfThePeerThatHasLess) {
  auto [host, nic] = OwnNic(2);
  protocol::Handle handle;
  auto listener = take(Listener::open(nic, &handle), "a listener");
  handle.queue_pairs_per_rail = 100;
  protocol::seal_handle(handle, handle.header.nonce, {256, 128});
  auto connector = take(Connector::start(nic, handle, -1), "a connector");
  ConnectedPair connection;
  void* device_handle = nullptr;
  ASSERT_TRUE(poll_until([&] {
    if (connection.sender == nullptr) connection.sender = take(connector->poll(), "a sender");
    auto& receiver = connection.receiving.receiver;
    if (receiver == nullptr) receiver = take(listener->poll({}, &device_handle), "a receiver");
    return connection.sender != nullptr && receiver != nullptr;
  }));
  Transfer transfer;
  for (int i = 0; i < 100; ++i) transfer.messages.push_back({.length_bytes = i % 3 == 0 ? 1'000'000U : 9U});
  expect_transfer_here(connection, nic, nic, transfer);
}

}  // namespace
}  // namespace verbena::transport
