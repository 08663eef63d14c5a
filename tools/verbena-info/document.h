// What verbena-info knows of a machine: one JSON document, which all outputs are views of.
// docs/verbena-info.md describes its members.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace verbena::tools::info {

using Json = nlohmann::ordered_json;

// Rises when a member changes its meaning or goes; new members do not raise it.
inline constexpr int kSchemaVersion = 1;

// A member's text; empty if it is missing or null.
inline std::string read_text(const Json& object, const char* member) {
  const auto found = object.find(member);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Of one of "devices": "mlx5_0 port 1".
inline std::string name_port(const Json& device) {
  return read_text(device, "device") + " port " + device["port"].dump();
}

inline Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

// What to do about something; shown at the end.
inline void advise(Json& document, const std::string& what, const std::string& remedy) {
  document["advice"].push_back({{"what", what}, {"try", remedy}});
}

}  // namespace verbena::tools::info
