#include "tuner/calibration_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace verbena::tuner {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 6;
constexpr size_t kMaxPoints = 256;
constexpr int64_t kMaxChannels = 64;  // NCCL's own limit
constexpr int64_t kMinChunkBytes = 4096, kMaxChunkBytes = 16 << 20;
constexpr int64_t kMaxRanks = 1 << 24;
constexpr int64_t kMaxThreads = 1024, kMaxBlocks = 512;  // of a kernel of libverbena_ops.so
constexpr int64_t kMaxSettingBytes = int64_t{1} << 32;   // the limit of the settings that the entries set
constexpr uint64_t kMaxPointBytes = uint64_t{1} << 50;
constexpr double kMaxMicroseconds = 1e12;

// An error and its position in the document; thrown and caught in this file.
struct Damage {
  std::string what;
};

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw Damage{place + " " + what};
}

const Json& member(const Json& object, const std::string& place, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) refuse(place, std::string("has no \"") + name + '"');
  return *found;
}

std::string read_text(const Json& value, const std::string& place) {
  if (!value.is_string()) refuse(place, "is not a string");
  return value.get<std::string>();
}

int64_t read_integer(const Json& value, const std::string& place, int64_t minimum, int64_t maximum) {
  const bool is_too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  if (!value.is_number_integer() || is_too_large) refuse(place, "is not a whole number");
  const auto number = value.get<int64_t>();
  if (number < minimum || number > maximum) {
    refuse(place, "is out of range (" + std::to_string(minimum) + " to " + std::to_string(maximum) + ")");
  }
  return number;
}

template <typename Kind>
Kind read_kind(const Json& object, const std::string& place, const char* name,
               std::optional<Kind> (*parse)(std::string_view)) {
  const std::string word = read_text(member(object, place, name), place + "." + name);
  const std::optional<Kind> kind = parse(word);
  if (!kind) refuse(place + "." + name, "is unknown: " + word);
  return *kind;
}

std::vector<Point> read_points(const Json& list, const std::string& place) {
  if (!list.is_array() || list.empty() || list.size() > kMaxPoints) {
    refuse(place, "is not a list of 1 to " + std::to_string(kMaxPoints) + " points");
  }
  std::vector<Point> points;
  for (const Json& pair : list) {
    const std::string here = place + "[" + std::to_string(points.size()) + "]";
    if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number())
      refuse(here, "is not of the form [bytes, microseconds]");
    Point point;
    point.bytes = static_cast<uint64_t>(read_integer(pair[0], here, 1, int64_t{kMaxPointBytes}));
    point.microseconds = pair[1].get<double>();
    if (!(point.microseconds > 0 && point.microseconds <= kMaxMicroseconds))
      refuse(here, "has a time that is out of range");
    if (!points.empty() && point.bytes <= points.back().bytes)
      refuse(here, "has a size that is not larger than the size of the previous point");
    points.push_back(point);
  }
  return points;
}

Measurement read_measurement(const Json& entry, const std::string& place) {
  if (!entry.is_object()) refuse(place, "is not an object");
  Measurement result;
  result.function = read_kind(entry, place, "function", &parse_function);
  result.algorithm = read_kind(entry, place, "algorithm", &parse_algorithm);
  result.protocol = read_kind(entry, place, "protocol", &parse_protocol);
  result.channels =
      static_cast<int>(read_integer(member(entry, place, "channels"), place + ".channels", 0, kMaxChannels));
  result.ranks =
      static_cast<uint32_t>(read_integer(member(entry, place, "ranks"), place + ".ranks", 2, kMaxRanks));
  result.nodes =
      static_cast<uint32_t>(read_integer(member(entry, place, "nodes"), place + ".nodes", 1, result.ranks));
  result.points = read_points(member(entry, place, "points"), place + ".points");
  return result;
}

OpsMeasurement read_ops_measurement(const Json& entry, const std::string& place) {
  if (!entry.is_object()) refuse(place, "is not an object");
  const auto text = [&](const char* name) {
    return read_text(member(entry, place, name), place + "." + name);
  };
  const auto number = [&](const char* name, int64_t minimum, int64_t maximum) {
    return static_cast<uint32_t>(
        read_integer(member(entry, place, name), place + "." + name, minimum, maximum));
  };
  OpsMeasurement result;
  result.operation = text("operation");
  result.algorithm = text("algorithm");
  result.gpu = text("gpu");
  result.ranks = number("ranks", 2, kMaxRanks);
  if (entry.contains("hosts")) result.hosts = number("hosts", 1, result.ranks);
  if (result.ranks % result.hosts != 0) refuse(place + ".hosts", "does not divide ranks");
  result.threads = number("threads", 32, kMaxThreads);
  result.chunk_bytes = number("chunk_bytes", 0, kMaxChunkBytes);
  const Json& list = member(entry, place, "points");
  if (!list.is_array() || list.empty() || list.size() > kMaxPoints)
    refuse(place + ".points", "is not a list of 1 to " + std::to_string(kMaxPoints) + " points");
  for (const Json& three : list) {
    const std::string here = place + ".points[" + std::to_string(result.points.size()) + "]";
    if (!three.is_array() || three.size() != 3 || !three[2].is_number())
      refuse(here, "is not of the form [bytes, blocks, microseconds]");
    OpsPoint point;
    point.bytes = static_cast<uint64_t>(read_integer(three[0], here, 1, int64_t{kMaxPointBytes}));
    point.blocks = static_cast<uint32_t>(read_integer(three[1], here, 1, kMaxBlocks));
    point.microseconds = three[2].get<double>();
    if (!(point.microseconds > 0 && point.microseconds <= kMaxMicroseconds))
      refuse(here, "has a time that is out of range");
    if (!result.points.empty() && point.bytes <= result.points.back().bytes)
      refuse(here, "has a size that is not larger than the size of the previous point");
    result.points.push_back(point);
  }
  return result;
}

TransportEntries read_transport(const Json& object) {
  const std::string place = "transport";
  if (!object.is_object()) refuse(place, "is not an object");
  TransportEntries result;
  if (const auto entry = object.find("unpack"); entry != object.end()) {
    if (!entry->is_boolean()) refuse(place + ".unpack", "is neither true nor false");
    result.unpack = entry->get<bool>();
  }
  const auto read = [&](const char* name, int64_t minimum, int64_t maximum) -> std::optional<int64_t> {
    const auto entry = object.find(name);
    if (entry == object.end()) return std::nullopt;
    return read_integer(*entry, place + "." + name, minimum, maximum);
  };
  result.unpack_threshold_bytes = read("unpack_threshold_bytes", 0, kMaxSettingBytes);
  result.min_stripe_bytes = read("min_stripe_bytes", 1, kMaxSettingBytes);
  result.min_channels = read("min_channels", 1, kMaxChannels);
  result.net_peer_channels = read("net_peer_channels", 1, kMaxChannels);
  result.net_chunk_bytes = read("net_chunk_bytes", kMinChunkBytes, kMaxChunkBytes);
  if (const auto entry = object.find("staged"); entry != object.end())
    result.staged = read_points(*entry, place + ".staged");
  if (const auto entry = object.find("direct"); entry != object.end())
    result.direct = read_points(*entry, place + ".direct");
  return result;
}

void check_format(const Json& document) {
  if (!document.is_object()) refuse("the file", "is not a JSON object");
  const auto format = document.find("format");
  if (format == document.end() || *format != kCalibrationFormat)
    refuse("the file", "is not a tuning file of Verbena");
  const int64_t version = read_integer(member(document, "the file", "version"), "version", 0,
                                       std::numeric_limits<int32_t>::max());
  if (version != kCalibrationVersion) {
    refuse("version", "is " + std::to_string(version) + ", but this plugin reads version " +
                          std::to_string(kCalibrationVersion));
  }
}

Calibration read_document(const Json& document) {
  check_format(document);
  Calibration result;
  if (const auto notes = document.find("notes"); notes != document.end()) {
    if (!notes->is_object()) refuse("notes", "is not an object");
    for (const auto& [name, text] : notes->items()) result.notes[name] = read_text(text, "notes." + name);
  }
  if (const auto entry = document.find("transport"); entry != document.end())
    result.transport = read_transport(*entry);
  if (const auto list = document.find("collectives"); list != document.end()) {
    if (!list->is_array()) refuse("collectives", "is not a list");
    for (const Json& entry : *list) {
      const std::string place = "collectives[" + std::to_string(result.collectives.size()) + "]";
      Measurement measurement = read_measurement(entry, place);
      for (const Measurement& earlier : result.collectives) {
        if (earlier.is_same_way(measurement)) refuse(place, "repeats an earlier entry");
      }
      result.collectives.push_back(std::move(measurement));
    }
  }
  if (const auto list = document.find("ops"); list != document.end()) {
    if (!list->is_array()) refuse("ops", "is not a list");
    for (const Json& entry : *list) {
      const std::string place = "ops[" + std::to_string(result.ops.size()) + "]";
      OpsMeasurement measurement = read_ops_measurement(entry, place);
      for (const OpsMeasurement& earlier : result.ops) {
        if (earlier.is_same_way(measurement)) refuse(place, "repeats an earlier entry");
      }
      result.ops.push_back(std::move(measurement));
    }
  }
  return result;
}

}  // namespace

ParsedCalibration parse_calibration(std::string_view text) {
  if (text.size() > kMaxFileBytes)
    return {{}, "the file is larger than " + std::to_string(kMaxFileBytes) + " bytes"};
  bool is_too_deep = false;
  const auto bound_depth = [&](int depth, Json::parse_event_t, Json&) {
    is_too_deep = is_too_deep || depth > kMaxDepth;
    return depth <= kMaxDepth;  // the parser discards deeper values
  };
  try {
    const Json document = Json::parse(text, bound_depth, false);
    if (is_too_deep) return {{}, "the file is nested too deeply"};
    if (document.is_discarded()) return {{}, "the file is not JSON"};
    return {read_document(document), {}};
  } catch (const Damage& damage) {
    return {{}, damage.what};
  } catch (const Json::exception& exception) {
    return {{}, exception.what()};
  }
}

ParsedCalibration read_calibration_file(const std::string& path) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  if (type == std::filesystem::file_type::fifo || type == std::filesystem::file_type::socket)
    return {{}, "the file is a pipe, and reading a pipe could block. Use a regular file"};
  std::ifstream file(path, std::ios::binary);
  if (!file) return {{}, std::string("the file cannot be read: ") + std::strerror(errno)};
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return {{}, "the file cannot be read"};
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.empty()) return {{}, "the file is empty or is a folder"};
  return parse_calibration(text);
}

}  // namespace verbena::tuner
