#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/table.h"

namespace verbena::tools {

// The stored result of every measuring tool. README.md documents its JSON; report/stored_results.py reads it.
constexpr int kResultSchemaVersion = 1;

struct ResultColumn {
  enum class Role : uint8_t {
    kKey,      // identifies the case: rows of two results with equal keys are compared
    kLower,    // a figure; lower is better
    kHigher,   // a figure; higher is better
    kNote,     // other information
    kSamples,  // the samples of a figure: in JSON only
  };
  std::string name;   // in JSON and CSV, ends in its unit: latency_us
  std::string label;  // for people: latency
  std::string unit;   // us; may be empty
  Role role = Role::kNote;
  std::string statistic = {};  // of a figure: median, p99, best, worst
  bool is_plotted = false;
};

struct ResultTable {
  std::string name;
  std::vector<ResultColumn> columns;
  std::vector<nlohmann::json> rows = {};  // objects by column name; a value that was not measured is absent
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
  nlohmann::json setup = nlohmann::json::object();        // one line for each device that was used
  std::vector<ResultTable> tables = {};
  nlohmann::json details = nlohmann::json::object();  // specific to the tool
};

nlohmann::json describe_result(const Result& result);

// Every row of every table under headers that carry units; tables of the same columns share one header.
std::string format_csv(const Result& result);

// The columns for people, without samples: wide enough for the rows that the table has.
Table make_text_table(const ResultTable& table);
std::string format_text_row(const ResultTable& table, const nlohmann::json& row);
// The name, the header and all rows.
std::string format_text(const ResultTable& table);

// The value as a table cell: numbers shortened, a missing value empty.
std::string format_value(const nlohmann::json& row, const std::string& column);

}  // namespace verbena::tools
