// The text as Prometheus reads it: each metric once, with its help and type before its lines; buckets that
// grow.
#include "observe/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "observe/connection.h"

namespace verbena::observe {
namespace {

using testing::HasSubstr;

Totals make_totals(const std::string& peer) {
  Connection connection({Direction::kReceive, peer, {"mlx5_0:1", "mlx5_1:1"}}, 0);
  connection.note_post(0, 100, 0);
  connection.note_chunk(0, Path::kStaged, 1, 0, 60);
  connection.note_done(0, 60);
  connection.note_post(1, 100, 0);
  connection.note_rail_down(0, 0);
  return connection.read(peer);
}

TEST(Prometheus, EveryLineIsOfTheFormat) {
  std::istringstream text(write_prometheus(make_totals("10.0.0.7:51514"), 42, 1700000000.25));
  const std::regex sample(R"re(([a-z_]+)\{([a-z]+="[^"]*")(,[a-z]+="[^"]*")*\} [0-9.e+-]+)re");
  std::set<std::string> described, typed;
  std::string line, family, type;
  for (std::smatch match; std::getline(text, line);) {
    std::istringstream words(line);
    std::string hash, keyword, name;
    words >> hash >> keyword >> name;
    if (keyword == "HELP") {
      EXPECT_TRUE(described.insert(name).second) << line;
    } else if (keyword == "TYPE") {
      EXPECT_TRUE(typed.insert(name).second) << line;
      family = name;
      words >> type;
    } else {
      ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
      EXPECT_EQ(match[1].str().substr(0, family.size()), family) << line;
      EXPECT_THAT(line, HasSubstr("{pid=\"42\""));
      EXPECT_EQ(type == "counter", family.ends_with("_total")) << line;
    }
  }
  EXPECT_EQ(described, typed);
  EXPECT_EQ(typed.size(), 13U);
}

TEST(Prometheus, SaysWhatWasCounted) {
  const std::string text = write_prometheus(make_totals("10.0.0.7:51514"), 42, 1700000000.25);
  const std::string labels =
      R"({pid="42",direction="receive",peer="10.0.0.7:51514",rail="mlx5_1:1",path="staged")";
  EXPECT_THAT(text, HasSubstr("verbena_messages_total" + labels + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("verbena_bytes_total" + labels + "} 60\n"));
  EXPECT_THAT(text, HasSubstr("verbena_rail_bytes_total" + labels + "} 60\n"));
  EXPECT_THAT(text, HasSubstr("verbena_message_latency_seconds_count" + labels + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("verbena_message_latency_seconds_bucket" + labels + ",le=\"+Inf\"} 1\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          R"(rail_failures_total{pid="42",direction="receive",peer="10.0.0.7:51514",rail="mlx5_0:1"} 1)"));
  EXPECT_THAT(text,
              HasSubstr(R"(verbena_open_requests{pid="42",direction="receive",peer="10.0.0.7:51514"} 1)"));
  EXPECT_THAT(text, HasSubstr("verbena_written_timestamp_seconds{pid=\"42\"} 1700000000.250\n"));
}

TEST(Prometheus, BucketsGrow) {
  Totals totals;
  PathTotals& path = totals.messages[{{{Direction::kSend, "p"}, "a:1"}, Path::kDirect}];
  path.messages = 6;
  path.latency[0] = 1;
  path.latency[3] = 2;
  path.latency[kBuckets - 1] = 3;
  path.latency_sum_ns = 1'500'000'000;
  const std::string text = write_prometheus(totals, 1, 0);
  EXPECT_THAT(text, HasSubstr("path=\"direct\",le=\"1.024e-06\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("path=\"direct\",le=\"4.096e-06\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("path=\"direct\",le=\"8.192e-06\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("path=\"direct\",le=\"68.7194767\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("path=\"direct\",le=\"+Inf\"} 6\n"));
  EXPECT_THAT(text,
              HasSubstr("_sum{pid=\"1\",direction=\"send\",peer=\"p\",rail=\"a:1\",path=\"direct\"} 1.5\n"));
}

TEST(Prometheus, LabelsAreEscaped) {
  const std::string text = write_prometheus(make_totals("a\"b\\c\nd"), 1, 0);
  EXPECT_THAT(text, HasSubstr(R"(peer="a\"b\\c\nd")"));
}

}  // namespace
}  // namespace verbena::observe
