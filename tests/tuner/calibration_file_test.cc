// The tuning file: what is written is read back, and nothing damaged passes.
#include "tuner/calibration_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

namespace verbena::tuner {
namespace {

Calibration make_calibration() {
  Calibration calibration;
  calibration.notes = {{"gpu", "H200 \"x\"\n"}, {"nccl", "2.28.9"}};
  calibration.transport.unpack = true;
  calibration.transport.unpack_threshold_bytes = 16384;
  calibration.transport.min_stripe_bytes = 65536;
  calibration.transport.min_channels = 8;
  calibration.transport.net_peer_channels = 3;
  calibration.transport.net_chunk_bytes = 65536;
  calibration.transport.staged = {{8, 2.25}, {4096, 3.125}};
  calibration.transport.direct = {{8, 3.1}, {4096, 3.2}};
  calibration.collectives = {
      {Function::kAllReduce, Algorithm::kRing, Protocol::kLl, 0, 2, 2, {{8, 20.1}, {1024, 21}}},
      {Function::kAllReduce, Algorithm::kNvlsTree, Protocol::kSimple, 4, 16, 2, {{uint64_t{1} << 40, 1e9}}}};
  return calibration;
}

std::string replace(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), with);
}

TEST(CalibrationFileTest, ReadsWhatItWrote) {
  const ParsedCalibration parsed = parse_calibration(format_calibration(make_calibration()));
  ASSERT_TRUE(parsed.calibration) << parsed.problem;
  EXPECT_EQ(*parsed.calibration, make_calibration());
  const ParsedCalibration empty = parse_calibration(format_calibration({}));
  ASSERT_TRUE(empty.calibration) << empty.problem;
  EXPECT_EQ(*empty.calibration, Calibration{});
}

TEST(CalibrationFileTest, ReadsALaterProgramsAdditions) {
  const std::string text =
      replace(format_calibration(make_calibration()), "\"version\"", "\"more\": [{}], \"version\"");
  EXPECT_TRUE(parse_calibration(text).calibration);
}

TEST(CalibrationFileTest, RefusesDamageAndNamesThePlace) {
  const std::string good = format_calibration(make_calibration());
  const struct {
    const char *what, *with, *problem;
  } damages[] = {
      {"verbena-tuning", "other", "not a tuning file"},
      {"\"version\": 1", "\"version\": 2", "version is 2"},
      {"\"version\": 1", "\"version\": \"1\"", "not a whole number"},
      {"\"unpack\": true", "\"unpack\": 1", "transport.unpack is neither"},
      {"16384", "-1", "transport.unpack_threshold_bytes is out of range"},
      {"65536", "0", "transport.min_stripe_bytes is out of range"},
      {"\"min_channels\": 8", "\"min_channels\": 0", "transport.min_channels is out of range"},
      {"\"net_chunk_bytes\": 65536", "\"net_chunk_bytes\": 17", "transport.net_chunk_bytes is out"},
      {"\"net_peer_channels\": 3", "\"net_peer_channels\": 99", "transport.net_peer_channels is out"},
      {"65536", "18446744073709551615", "not a whole number"},
      {"all_reduce", "all_reverse", "collectives[0].function is unknown: all_reverse"},
      {"\"ring\"", "7", "collectives[0].algorithm is not a string"},
      {"\"ll\"", "\"LL\"", "collectives[0].protocol is unknown"},
      {"\"channels\":0", "\"channels\":65", "collectives[0].channels is out of range"},
      {"\"ranks\":2", "\"ranks\":1", "collectives[0].ranks is out of range"},
      {"\"nodes\":2", "\"nodes\":3", "collectives[0].nodes is out of range"},
      {"\"nodes\":2,", "", "has no \"nodes\""},
      {"[1024,21.0]", "[8,21.0]", "not larger than the size of the previous point"},
      {"[1024,21.0]", "[1024,-21.0]", "time that is out of range"},
      {"[1024,21.0]", "[1024,0]", "time that is out of range"},
      {"[1024,21.0]", "[1024,1e300]", "time that is out of range"},
      {"[1024,21.0]", "[1024]", "not of the form [bytes, microseconds]"},
      {"[1024,21.0]", "[1024.5,21]", "not a whole number"},
      {"[8,20.1]", "[0,20.1]", "out of range"},
      {"2.28.9\"", "2.28.9\", \"n\": 3", "notes.n is not a string"},
  };
  for (const auto& damage : damages) {
    const ParsedCalibration parsed = parse_calibration(replace(good, damage.what, damage.with));
    EXPECT_FALSE(parsed.calibration) << damage.with;
    EXPECT_NE(parsed.problem.find(damage.problem), std::string::npos)
        << damage.with << ": " << parsed.problem;
  }
}

TEST(CalibrationFileTest, RefusesTwoMeasurementsOfTheSame) {
  Calibration calibration = make_calibration();
  calibration.collectives.push_back(calibration.collectives[0]);
  EXPECT_NE(parse_calibration(format_calibration(calibration)).problem.find("repeats"), std::string::npos);
}

TEST(CalibrationFileTest, PutsAMeasurementInItsPlace) {
  Calibration calibration = make_calibration();
  Measurement again = calibration.collectives[0];
  again.points = {{8, 1}};
  put_measurement(calibration, again);
  EXPECT_EQ(calibration.collectives.size(), 2u);
  EXPECT_EQ(calibration.collectives[0], again);
  again.nodes = 1;
  put_measurement(calibration, again);
  EXPECT_EQ(calibration.collectives.size(), 3u);
}

TEST(CalibrationFileTest, RefusesWhatIsNoDocument) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("\xff\xfe"),
        std::string(1 << 19, '['), std::string(2 << 20, ' ')}) {
    const ParsedCalibration parsed = parse_calibration(text);
    EXPECT_FALSE(parsed.calibration);
    EXPECT_FALSE(parsed.problem.empty());
  }
  std::string deep = "1";
  for (int i = 0; i < 50; ++i) deep = "[" + deep + "]";
  EXPECT_EQ(parse_calibration(deep).problem, "the file is nested too deeply");
}

TEST(CalibrationFileTest, ReadsAndReplacesFiles) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "calibration_file_test.json";
  std::filesystem::remove(path);
  EXPECT_NE(read_calibration_file(path).problem.find("No such file"), std::string::npos);
  EXPECT_EQ(write_calibration_file(path, Calibration{}), "");
  EXPECT_EQ(write_calibration_file(path, make_calibration()), "");
  EXPECT_EQ(read_calibration_file(path).calibration, make_calibration());
  EXPECT_FALSE(read_calibration_file(testing::TempDir()).calibration);
  EXPECT_NE(write_calibration_file(path / "below", make_calibration()), "");
  std::filesystem::remove(path);
}

TEST(CalibrationFileTest, FingerprintIsOfTheMeasurements) {
  Calibration calibration = make_calibration();
  const uint64_t fingerprint = compute_fingerprint(calibration);
  calibration.notes.clear();
  EXPECT_EQ(compute_fingerprint(calibration), fingerprint);
  calibration.collectives[0].points[0].microseconds += 0.1;
  EXPECT_NE(compute_fingerprint(calibration), fingerprint);
}

// Random damage: the reader answers, and what it accepts is in range.
TEST(CalibrationFileTest, SurvivesRandomDamage) {
  std::mt19937 random(20261120);
  const std::string good = format_calibration(make_calibration());
  const std::string pieces[] = {"{",   "}",       "[",   "]",    "\"",   ",",
                                ":",   "1e999",   "-",   "null", "true", "9999999999999999999",
                                "NaN", "\\u0000", "\xf0"};
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (int hit = static_cast<int>(random() % 3); hit >= 0; --hit) {
      if (text.empty()) break;
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 40);
          break;
        case 2:
          text.insert(at, pieces[random() % std::size(pieces)]);
          break;
        default:
          text.resize(at + 1);
      }
    }
    const ParsedCalibration parsed = parse_calibration(text);
    ASSERT_EQ(parsed.calibration.has_value(), parsed.problem.empty()) << text;
    if (!parsed.calibration) continue;
    ++accepted;
    for (const Measurement& m : parsed.calibration->collectives) {
      ASSERT_FALSE(m.points.empty());
      ASSERT_TRUE(m.channels >= 0 && m.channels <= 64 && m.nodes >= 1 && m.nodes <= m.ranks) << text;
      for (const Point& point : m.points) ASSERT_GT(point.microseconds, 0) << text;
    }
  }
  EXPECT_GT(accepted, 0);  // white space and digits may change
}

}  // namespace
}  // namespace verbena::tuner
