#include "common/result.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "common/error.h"

namespace verbena::tools {
namespace {

using nlohmann::json;
using Role = ResultColumn::Role;

constexpr const char* kSchema = "verbena-result";
constexpr std::array<const char*, 5> kRoleNames{"key", "lower", "higher", "note", "samples"};

const char* describe_role(Role role) {
  return kRoleNames[static_cast<size_t>(role)];
}

Role parse_role(const std::string& name) {
  for (size_t index = 0; index < kRoleNames.size(); ++index) {
    if (name == kRoleNames[index]) return static_cast<Role>(index);
  }
  return Role::kNote;  // of a later release: nothing is lost by showing it
}

json describe_column(const ResultColumn& column) {
  json described{{"name", column.name},
                 {"label", column.label},
                 {"unit", column.unit},
                 {"role", describe_role(column.role)}};
  if (!column.statistic.empty()) described["statistic"] = column.statistic;
  if (column.is_plotted) described["plotted"] = true;
  return described;
}

ResultColumn parse_column(const json& described) {
  ResultColumn column;
  column.name = described.at("name");
  column.label = described.value("label", column.name);
  column.unit = described.value("unit", "");
  column.role = parse_role(described.value("role", "note"));
  column.statistic = described.value("statistic", "");
  column.is_plotted = described.value("plotted", false);
  return column;
}

ResultTable parse_table(const json& described) {
  ResultTable table;
  table.name = described.at("name");
  for (const json& column : described.at("columns")) table.columns.push_back(parse_column(column));
  for (const json& row : described.at("rows")) {
    if (!row.is_object()) throw ToolError("a row is no object");
    table.rows.push_back(row);
  }
  return table;
}

std::string quote_csv(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return quoted + "\"";
}

std::string join_csv_header(const ResultTable& table) {
  std::string line;
  for (const ResultColumn& column : table.columns) {
    if (column.role != Role::kSamples) line += (line.empty() ? "" : ",") + column.name;
  }
  return line + "\n";
}

}  // namespace

std::vector<const ResultColumn*> ResultTable::list_keys() const {
  std::vector<const ResultColumn*> keys;
  for (const ResultColumn& column : columns) {
    if (column.role == Role::kKey) keys.push_back(&column);
  }
  return keys;
}

std::string ResultTable::describe_keys(const json& row) const {
  std::string text;
  for (const ResultColumn* key : list_keys())
    text += (text.empty() ? "" : ", ") + format_value(row, key->name);
  return text;
}

const ResultTable* Result::find_table(const std::string& name) const {
  const auto found = std::find_if(tables.begin(), tables.end(),
                                  [&](const ResultTable& table) { return table.name == name; });
  return found == tables.end() ? nullptr : &*found;
}

json describe_result(const Result& result) {
  json tables = json::array();
  for (const ResultTable& table : result.tables) {
    json columns = json::array();
    for (const ResultColumn& column : table.columns) columns.push_back(describe_column(column));
    tables.push_back({{"name", table.name}, {"columns", columns}, {"rows", table.rows}});
  }
  return {{"schema", kSchema},
          {"schema_version", kResultSchemaVersion},
          {"tool", result.tool},
          {"version", result.version},
          {"command", result.command},
          {"started", result.started},
          {"duration_s", result.duration_s},
          {"status", result.status},
          {"machine", result.machine},
          {"environment", result.environment},
          {"setup", result.setup},
          {"tables", std::move(tables)},
          {"details", result.details}};
}

Result parse_result(const json& document, const std::string& source) {
  try {
    if (!document.is_object() || document.value("schema", "") != kSchema)
      throw ToolError("is no result: --json of these tools writes them");
    const int version = document.at("schema_version");
    if (version > kResultSchemaVersion) {
      throw ToolError("has schema_version " + std::to_string(version) + ", and this release reads up to " +
                      std::to_string(kResultSchemaVersion));
    }
    Result result;
    result.tool = document.at("tool");
    result.version = document.at("version");
    result.command = document.at("command");
    result.started = document.at("started");
    result.duration_s = document.value("duration_s", 0.0);
    result.status = document.value("status", "ok");
    result.machine = document.value("machine", json::object());
    result.environment = document.value("environment", json::object());
    result.setup = document.value("setup", json::object());
    for (const json& table : document.at("tables")) result.tables.push_back(parse_table(table));
    result.details = document.value("details", json::object());
    result.source = source;
    return result;
  } catch (const std::exception& error) {
    throw ToolError(source + " " + error.what());
  }
}

Result read_result(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw ToolError(file + " cannot be read: " + std::strerror(errno));
  const json document = json::parse(stream, nullptr, false);
  if (document.is_discarded())
    throw ToolError(file + " is no JSON: --json FILE of these tools writes results");
  return parse_result(document, file);
}

std::string format_value(const json& row, const std::string& column) {
  const auto found = row.find(column);
  if (found == row.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_number_float()) return found->dump();
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", found->get<double>());
  return text;
}

std::string format_csv(const Result& result) {
  std::string text, header;
  for (const ResultTable& table : result.tables) {
    const std::string own_header = join_csv_header(table);
    if (own_header != header) text += (text.empty() ? "" : "\n") + own_header;
    header = own_header;
    for (const json& row : table.rows) {
      std::string line;
      bool is_first = true;
      for (const ResultColumn& column : table.columns) {
        if (column.role == Role::kSamples) continue;
        line += (is_first ? "" : ",") + quote_csv(format_value(row, column.name));
        is_first = false;
      }
      text += line + "\n";
    }
  }
  return text;
}

}  // namespace verbena::tools
