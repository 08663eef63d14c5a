#include "common/result.h"

#include <array>
#include <cstdio>

namespace verbena::tools {
namespace {

using nlohmann::json;
using Role = ResultColumn::Role;

constexpr const char* kSchema = "verbena-result";
constexpr std::array<const char*, 5> kRoleNames{"key", "lower", "higher", "note", "samples"};

const char* describe_role(Role role) {
  return kRoleNames[static_cast<size_t>(role)];
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

namespace {

std::string format_cell(const json& row, const std::string& column) {
  const auto found = row.find(column);
  if (found != row.end() && found->is_number_float()) return format_figure(found->get<double>());
  const std::string text = format_value(row, column);
  return text.empty() ? "-" : text;
}

}  // namespace

Table make_text_table(const ResultTable& table) {
  constexpr size_t kKeyWidth = 6, kFigureWidth = 8;
  std::vector<Column> columns;
  for (const ResultColumn& column : table.columns) {
    if (column.role == Role::kSamples) continue;
    size_t width = std::max(column.label.size(), column.unit.size() + 2);
    width = std::max(width, column.role == Role::kKey ? kKeyWidth : kFigureWidth);
    for (const json& row : table.rows) width = std::max(width, format_cell(row, column.name).size());
    columns.push_back({column.label, column.unit, static_cast<int>(width)});
  }
  return Table(columns);
}

std::string format_text_row(const ResultTable& table, const json& row) {
  std::vector<std::string> cells;
  for (const ResultColumn& column : table.columns)
    if (column.role != Role::kSamples) cells.push_back(format_cell(row, column.name));
  return make_text_table(table).format_row(cells);
}

std::string format_text(const ResultTable& table) {
  std::string text = "# " + table.name + "\n" + make_text_table(table).format_header();
  for (const json& row : table.rows) text += format_text_row(table, row);
  return text;
}

}  // namespace verbena::tools
