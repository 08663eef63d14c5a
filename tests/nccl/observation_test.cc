// Counters and the trace through every version of the table: the newest one's calls are not the only ones
// that lead to them, and only the newest ones have a finalize.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/scratch_path.h"
#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {
namespace {

template <typename V>
class ObservationTest : public LiveTest<V> {
 protected:
  static constexpr uint64_t kDirect = 5, kStaged = 3;
  static constexpr size_t kDirectBytes = 100'000, kStagedBytes = 3000;

  ObservationTest() {
    std::filesystem::create_directory(folder_.get());
    this->environment_.set("VERBENA_STATS", stats_path().c_str());
    this->environment_.set("VERBENA_TRACE", trace_path().c_str());
    this->environment_.set("VERBENA_STATS_INTERVAL_MS", "100");
  }
  std::string stats_path() const { return folder_.get() + "/stats.prom"; }
  std::string trace_path() const { return folder_.get() + "/trace.json"; }

  bool transfer_some() {
    auto* connection = this->start() == 2 ? this->establish() : nullptr;
    if (connection == nullptr) return false;
    bool is_right = true;
    for (uint64_t i = 0; i < kDirect; ++i) is_right &= connection->transfer(kDirectBytes, 0, 0) == nullptr;
    for (uint64_t i = 0; i < kStaged; ++i) is_right &= connection->transfer(kStagedBytes, 0, 0) == nullptr;
    return is_right;
  }
  // A metric of one end and path, which one line says or none.
  uint64_t read_metric(const std::string& metric, const std::string& direction, const std::string& path,
                       const std::string& peer = "127.0.0.1:") const {
    std::ifstream file(stats_path());
    uint64_t total = 0;
    for (std::string line; std::getline(file, line);) {
      const bool is_meant = line.starts_with(metric + "{") &&
                            line.find("direction=\"" + direction + "\",peer=\"" + peer) != line.npos &&
                            line.find("path=\"" + path + "\"") != line.npos;
      if (is_meant) total += std::stoull(line.substr(line.rfind(' ')));
    }
    return total;
  }
  void expect_counts() const {
    for (const char* direction : {"send", "receive"}) {
      EXPECT_EQ(read_metric("verbena_messages_total", direction, "direct"), kDirect) << direction;
      EXPECT_EQ(read_metric("verbena_bytes_total", direction, "direct"), kDirect * kDirectBytes) << direction;
      EXPECT_EQ(read_metric("verbena_messages_total", direction, "staged"), kStaged) << direction;
      EXPECT_EQ(read_metric("verbena_bytes_total", direction, "staged"), kStaged * kStagedBytes) << direction;
      EXPECT_EQ(read_metric("verbena_message_latency_seconds_count", direction, "staged"), kStaged)
          << direction;
    }
  }
  // How many events of the trace have this phase and a name that begins so.
  size_t count_events(const std::string& phase, const std::string& name) const {
    std::ifstream file(trace_path());
    const auto trace = nlohmann::json::parse(file, nullptr, false);
    if (trace.is_discarded()) return 0;
    size_t count = 0;
    for (const auto& event : trace["traceEvents"])
      count += event["ph"] == phase && event["name"].template get<std::string>().starts_with(name) ? 1 : 0;
    return count;
  }
  void expect_events() const {
    constexpr size_t kMessages = kDirect + kStaged;
    EXPECT_EQ(count_events("M", "thread_name"), 2U);
    EXPECT_EQ(count_events("b", "message "), 2 * kMessages);
    EXPECT_EQ(count_events("e", "message "), 2 * kMessages);
    EXPECT_GE(count_events("i", "grant sent"), kDirect);  // and those for what was staged meanwhile
    EXPECT_EQ(count_events("b", "GPU unpacks and uses"), kStaged);
    EXPECT_EQ(count_events("b", "GPU uses"), kDirect);
  }

  tests::ScratchPath folder_{"observed"};
};
TYPED_TEST_SUITE(ObservationTest, AllVersions, VersionNames);

TYPED_TEST(ObservationTest, WrittenWhenTheLastConnectionCloses) {
  ASSERT_TRUE(this->transfer_some());
  EXPECT_FALSE(std::filesystem::exists(this->trace_path())) << "nothing has happened that asks for it";
  this->connections_.clear();
  this->expect_counts();
  this->expect_events();
}

TYPED_TEST(ObservationTest, CountersAreFreshMeanwhile) {
  ASSERT_TRUE(this->transfer_some());
  // Each end's counters come to the file on their own.
  EXPECT_TRUE(poll_until([&] {
    return this->read_metric("verbena_messages_total", "send", "staged") == this->kStaged &&
           this->read_metric("verbena_messages_total", "receive", "staged") == this->kStaged;
  }));
  this->expect_counts();
}

TYPED_TEST(ObservationTest, NobodyAsksNothingIsWritten) {
  this->environment_.unset("VERBENA_STATS");
  this->environment_.unset("VERBENA_TRACE");
  ASSERT_TRUE(this->transfer_some());
  this->connections_.clear();
  EXPECT_TRUE(std::filesystem::is_empty(this->folder_.get()));
}

// Messages in packets, of which a plan loses some.
class DatagramObservationTest : public ObservationTest<NewestVersion> {
 protected:
  DatagramObservationTest() {
    environment_.set("VERBENA_TRANSPORT", "datagram");
    environment_.set("SOFTVERBS_FAULTS", "seed 3; lose chance=0.1");
  }
  uint64_t read(const std::string& metric, const std::string& direction) const {
    return read_metric(metric, direction, "staged", "engine ");
  }
  // Of an end, whatever the path.
  uint64_t read_resent() const {
    std::ifstream file(stats_path());
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("verbena_replayed_chunks_total{") && line.find("direction=\"send\"") != line.npos)
        return std::stoull(line.substr(line.rfind(' ')));
    return 0;
  }
};

TEST_F(DatagramObservationTest, MessagesPacketsAndRepairsAreSeen) {
  constexpr uint64_t kMessages = 5;
  constexpr size_t kBytes = 1'000'000;
  if (::testing::UnitTest::GetInstance()->test_to_run_count() != 1)
    GTEST_SKIP() << "needs a process of its own: softverbs reads its plan once";
  auto* connection = start_connected(0, HandleShape::kNull);
  for (uint64_t i = 0; i < kMessages; ++i) ASSERT_EQ(connection->transfer(kBytes, 0, 0), nullptr);
  connections_.clear();
  for (const char* direction : {"send", "receive"}) {
    EXPECT_EQ(read("verbena_messages_total", direction), kMessages) << direction;
    EXPECT_EQ(read("verbena_bytes_total", direction), kMessages * kBytes) << direction;
    EXPECT_EQ(read("verbena_message_latency_seconds_count", direction), kMessages) << direction;
  }
  const uint64_t sent = read("verbena_rail_bytes_total", "send"),
                 received = read("verbena_rail_bytes_total", "receive");
  EXPECT_EQ(received, kMessages * kBytes) << "each packet counts once";
  EXPECT_GT(sent, received) << "those that were lost were sent again";
  EXPECT_GT(read_resent(), 0U);
  std::stringstream text;
  text << std::ifstream(stats_path()).rdbuf();
  EXPECT_EQ(text.str().find("rail=\"several\""), std::string::npos) << "the device has one";
  EXPECT_EQ(count_events("M", "thread_name"), 2U);
  EXPECT_EQ(count_events("b", "message "), 2 * kMessages);
  EXPECT_EQ(count_events("e", "message "), 2 * kMessages);
  EXPECT_GE(count_events("i", "packets retransmitted"), 1U);
}

}  // namespace
}  // namespace verbena::nccl::testing
