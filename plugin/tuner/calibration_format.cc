// Writes tuning files. Only the tools write them; the plugin uses only the fingerprint.
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/dump_file.h"
#include "tuner/calibration_file.h"

namespace verbena::tuner {
namespace {

using Json = nlohmann::json;

Json make_points(const std::vector<Point>& points) {
  Json list = Json::array();
  for (const Point& point : points) list.push_back({point.bytes, point.microseconds});
  return list;
}

Json make_transport(const TransportEntries& t) {
  Json transport = Json::object();
  if (t.unpack) transport["unpack"] = *t.unpack;
  if (t.unpack_threshold_bytes) transport["unpack_threshold_bytes"] = *t.unpack_threshold_bytes;
  if (t.min_stripe_bytes) transport["min_stripe_bytes"] = *t.min_stripe_bytes;
  if (t.min_channels) transport["min_channels"] = *t.min_channels;
  if (t.net_peer_channels) transport["net_peer_channels"] = *t.net_peer_channels;
  if (t.net_chunk_bytes) transport["net_chunk_bytes"] = *t.net_chunk_bytes;
  if (!t.staged.empty()) transport["staged"] = make_points(t.staged);
  if (!t.direct.empty()) transport["direct"] = make_points(t.direct);
  return transport;
}

Json make_measurement(const Measurement& m) {
  return {{"function", name_of(m.function)},
          {"algorithm", name_of(m.algorithm)},
          {"protocol", name_of(m.protocol)},
          {"channels", m.channels},
          {"ranks", m.ranks},
          {"nodes", m.nodes},
          {"points", make_points(m.points)}};
}

Json make_ops_measurement(const OpsMeasurement& m) {
  Json points = Json::array();
  for (const OpsPoint& point : m.points) points.push_back({point.bytes, point.blocks, point.microseconds});
  Json entry = {{"operation", m.operation}, {"algorithm", m.algorithm}, {"gpu", m.gpu},
                {"ranks", m.ranks},         {"threads", m.threads},     {"chunk_bytes", m.chunk_bytes},
                {"points", points}};
  if (m.hosts != 1) entry["hosts"] = m.hosts;
  return entry;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// One line for each member.
std::string dump_object(const Json& object) {
  std::string text;
  for (const auto& [name, value] : object.items())
    text += (text.empty() ? "\n    " : ",\n    ") + dump(name) + ": " + dump(value);
  return "{" + text + "\n  }";
}

}  // namespace

void put_measurement(Calibration& calibration, Measurement measurement) {
  for (Measurement& earlier : calibration.collectives) {
    if (!earlier.is_same_way(measurement)) continue;
    earlier = std::move(measurement);
    return;
  }
  calibration.collectives.push_back(std::move(measurement));
}

void put_ops_measurements(Calibration& calibration, const std::vector<OpsMeasurement>& measurements) {
  for (const OpsMeasurement& measured : measurements) {
    std::erase_if(calibration.ops, [&](const OpsMeasurement& earlier) {
      return earlier.operation == measured.operation && earlier.gpu == measured.gpu &&
             earlier.ranks == measured.ranks && earlier.hosts == measured.hosts;
    });
  }
  calibration.ops.insert(calibration.ops.end(), measurements.begin(), measurements.end());
}

// One line for each measurement, because people compare such files with diff.
std::string format_calibration(const Calibration& calibration) {
  std::string text = "{\n  \"format\": " + dump(kCalibrationFormat) +
                     ",\n  \"version\": " + std::to_string(kCalibrationVersion) +
                     ",\n  \"notes\": " + dump_object(Json(calibration.notes)) +
                     ",\n  \"transport\": " + dump_object(make_transport(calibration.transport)) +
                     ",\n  \"collectives\": [";
  bool is_first = true;
  for (const Measurement& measurement : calibration.collectives) {
    text += (std::exchange(is_first, false) ? "\n    " : ",\n    ") + dump(make_measurement(measurement));
  }
  text += "\n  ]";
  if (calibration.ops.empty()) return text + "\n}\n";
  text += ",\n  \"ops\": [";
  is_first = true;
  for (const OpsMeasurement& measurement : calibration.ops)
    text += (std::exchange(is_first, false) ? "\n    " : ",\n    ") + dump(make_ops_measurement(measurement));
  return text + "\n  ]\n}\n";
}

std::string write_calibration_file(const std::string& path, const Calibration& calibration) {
  constexpr unsigned kForAll = 0666;  // the umask applies
  const int error = base::replace_file(path, format_calibration(calibration), kForAll);
  return error == 0 ? "" : "cannot write " + path + ": " + std::strerror(error);
}

// FNV-1a. It shows users that two files differ; it does not protect against an attacker.
uint64_t compute_fingerprint(const Calibration& calibration) {
  Calibration bare = calibration;
  bare.notes.clear();
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : format_calibration(bare))
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace verbena::tuner
