#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace verbena::tools {

// What a tool has written for --json; discarded where it is no JSON.
inline nlohmann::json parse_document(const std::string& text) {
  return nlohmann::json::parse(text, nullptr, false);
}

// The rows of a document's first table.
inline nlohmann::json list_rows(const nlohmann::json& document) {
  const auto found = document.find("tables");
  if (found == document.end() || found->empty()) return nlohmann::json::array();
  return found->at(0).at("rows");
}

}  // namespace verbena::tools
