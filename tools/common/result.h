#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace verbena::tools {

// What every measuring tool stores: docs of its JSON are in README.md.
constexpr int kResultSchemaVersion = 1;

struct ResultColumn {
  enum class Role : uint8_t {
    kKey,      // which case this is: rows of two results with equal keys are compared
    kLower,    // a figure, and lower is better
    kHigher,   // a figure, and higher is better
    kNote,     // anything else that is worth a column
    kSamples,  // the list of numbers that a figure comes from: in JSON only
  };
  std::string name;   // in JSON and CSV, ends in its unit: latency_us
  std::string label;  // where people read it: latency
  std::string unit;   // us; may be empty
  Role role = Role::kNote;
  std::string statistic = {};  // of a figure: median, p99, best, worst
  bool is_plotted = false;

  bool is_figure() const { return role == Role::kLower || role == Role::kHigher; }
};

struct ResultTable {
  std::string name;
  std::vector<ResultColumn> columns;
  std::vector<nlohmann::json> rows = {};  // objects by the columns' names; what was not measured is left out

  std::vector<const ResultColumn*> list_keys() const;
  // "verbena, 4096": what tells a row from the others of its table.
  std::string describe_keys(const nlohmann::json& row) const;
};

struct Result {
  std::string tool;
  std::string version;
  std::string command;
  std::string started;  // UTC, ISO 8601
  double duration_s = 0;
  std::string status = "ok";  // ok, wrong data, failed
  nlohmann::json machine = nlohmann::json::object();
  nlohmann::json environment = nlohmann::json::object();  // variables that change what is measured
  nlohmann::json setup = nlohmann::json::object();        // one line each: what was measured over
  std::vector<ResultTable> tables = {};
  nlohmann::json details = nlohmann::json::object();  // the tool's own
  std::string source = {};                            // the file that it was read from; not stored

  const ResultTable* find_table(const std::string& name) const;
};

nlohmann::json describe_result(const Result& result);

// Throws ToolError, naming `source`, for what is no result or one of a newer schema.
Result parse_result(const nlohmann::json& document, const std::string& source);
Result read_result(const std::string& file);

// Every row of every table under headers that carry units; tables of the same columns share one header.
std::string format_csv(const Result& result);

// As a cell: numbers short, what is missing empty.
std::string format_value(const nlohmann::json& row, const std::string& column);

}  // namespace verbena::tools
