#include "report/page.h"

#include <algorithm>
#include <cstdio>

#include "common/markup.h"
#include "common/result_comparison.h"
#include "common/size.h"
#include "common/table.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/style.h"

namespace verbena::tools::report {
namespace {

using nlohmann::json;
using Role = ResultColumn::Role;

std::string format_cell(const json& row, const ResultColumn& column) {
  const auto found = row.find(column.name);
  if (found == row.end() || found->is_null()) return "–";
  if (column.is_figure() && found->is_number()) return format_figure(found->get<double>());
  const bool is_size = column.role == Role::kKey && column.unit == "B" && found->is_number_unsigned();
  return is_size ? format_size(found->get<uint64_t>()) : format_value(row, column.name);
}

bool holds_numbers(const ResultTable& table, const ResultColumn& column) {
  return std::all_of(table.rows.begin(), table.rows.end(), [&](const json& row) {
    const auto found = row.find(column.name);
    return found == row.end() || found->is_number();
  });
}

class Page {
 public:
  std::string make(const Collection& collection, const std::string& folder) {
    add("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Verbena: "
        "measurements</title>\n<style>");
    add(kStyle);
    add("</style></head><body>\n<header><h1>Verbena: measurements</h1>\n<p class=\"soft\">" +
        std::to_string(collection.results.size()) + " results of " + escape_markup(folder) +
        "</p></header>\n");
    add_overview(collection);
    const std::vector<LikeTables> likes = find_like_tables(collection.results);
    for (const LikeTables& like : likes) add_comparison(like);
    for (size_t index = 0; index < collection.results.size(); ++index)
      add_result(collection.results[index], index);
    add("</body></html>\n");
    return std::move(html_);
  }

 private:
  void add(const std::string& text) { html_ += text; }

  void add_overview(const Collection& collection) {
    add("<nav><div class=\"scroll\"><table><thead><tr><th class=\"text\">result</th><th "
        "class=\"text\">tool</th>"
        "<th class=\"text\">started (UTC)</th><th class=\"text\">machine</th><th "
        "class=\"text\">status</th></tr></thead><tbody>\n");
    for (size_t index = 0; index < collection.results.size(); ++index) {
      const NamedResult& named = collection.results[index];
      const Result& result = named.result;
      const std::string machine =
          format_value(result.machine, "host") + ", " + format_value(result.machine, "cpu");
      add("<tr><td class=\"text\"><a href=\"#result-" + std::to_string(index) + "\">" +
          escape_markup(named.name) + "</a></td><td class=\"text\">" +
          escape_markup(result.tool + " " + result.version) + "</td><td class=\"text\">" +
          escape_markup(result.started) + "</td><td class=\"text\">" + escape_markup(machine) +
          "</td><td class=\"text\">" + format_status(result) + "</td></tr>\n");
    }
    add("</tbody></table></div></nav>\n");
    for (const std::string& reason : collection.left_out)
      add("<p class=\"soft\">Left out: " + escape_markup(reason) + "</p>\n");
  }

  static std::string format_status(const Result& result) {
    const bool is_ok = result.status == "ok";
    return std::string("<span class=\"") + (is_ok ? "ok" : "wrong") + "\">" + escape_markup(result.status) +
           "</span>";
  }

  void add_facts(const char* title, const json& facts) {
    if (facts.empty()) return;
    add(std::string("<div><h3>") + title + "</h3><dl>");
    for (const auto& [name, value] : facts.items()) {
      std::string text = format_value(facts, name);
      std::string shown = name;
      if (name == "memory_bytes" && value.is_number()) {
        shown = "memory";
        text = std::to_string(value.get<uint64_t>() >> 30) + " GiB";
      }
      add("<dt>" + escape_markup(shown) + "</dt><dd>" + escape_markup(text) + "</dd>");
    }
    add("</dl></div>\n");
  }

  void add_charts(const ResultTable& table) {
    add("<div class=\"charts\">");
    for (const Plot& plot : list_plots(table)) add(draw_chart(plot, ++charts_));
    add("</div>\n");
  }

  void add_table(const ResultTable& table) {
    std::vector<HtmlColumn> columns;
    std::vector<const ResultColumn*> shown;
    for (const ResultColumn& column : table.columns) {
      if (column.role == Role::kSamples) continue;
      shown.push_back(&column);
      columns.push_back({column.label, column.unit, holds_numbers(table, column)});
    }
    std::vector<std::vector<std::string>> rows;
    for (const json& row : table.rows) {
      std::vector<std::string>& cells = rows.emplace_back();
      for (const ResultColumn* column : shown) cells.push_back(format_cell(row, *column));
    }
    add(format_html_table(columns, rows));
  }

  void add_result(const NamedResult& named, size_t index) {
    const Result& result = named.result;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f s", result.duration_s);
    add("<section class=\"result\" id=\"result-" + std::to_string(index) + "\"><h2>" +
        escape_markup(named.name) + "</h2>\n<p class=\"soft\">" +
        escape_markup(result.tool + " " + result.version) + ", " + escape_markup(result.started) + ", took " +
        seconds + ", " + format_status(result) + "</p>\n<pre>" + escape_markup(result.command) +
        "</pre>\n<div class=\"facts\">");
    add_facts("Measured", result.setup);
    add_facts("Machine", result.machine);
    add("</div>\n");
    if (!result.environment.empty()) {
      add("<details><summary>Environment</summary><dl>");
      for (const auto& [name, value] : result.environment.items())
        add("<dt>" + escape_markup(name) + "</dt><dd>" +
            escape_markup(format_value(result.environment, name)) + "</dd>");
      add("</dl></details>\n");
    }
    for (const ResultTable& table : result.tables) {
      add("<h3>" + escape_markup(table.name) + "</h3>\n");
      add_charts(table);
      add_table(table);
    }
    add("</section>\n");
  }

  // A table for each median: a column a result, and how many times better than the first one.
  void add_comparison(const LikeTables& like) {
    add("<section class=\"comparison\"><h2>Compared: " +
        escape_markup(like.tool + ", " + like.tables[0]->name) +
        "</h2>\n<p class=\"soft\">Times better than " + escape_markup(like.results[0]->name) +
        ", the first one: above 1 is better, whether lower or higher is.</p>\n");
    add_charts(join_tables(like));
    add("<div class=\"beside\">");
    for (const ResultColumn& column : like.tables[0]->columns) {
      if (column.is_figure() && column.is_plotted && column.statistic == "median")
        add_compared_figure(like, column);
    }
    add("</div></section>\n");
  }

  void add_compared_figure(const LikeTables& like, const ResultColumn& figure) {
    const ResultTable& first = *like.tables[0];
    std::vector<HtmlColumn> columns;
    for (const ResultColumn* key : first.list_keys())
      columns.push_back({key->label, key->unit, holds_numbers(first, *key)});
    for (size_t index = 0; index < like.results.size(); ++index) {
      columns.push_back({like.results[index]->name, figure.unit});
      if (index > 0) columns.push_back({"better", "times"});
    }
    std::vector<std::vector<std::string>> rows;
    for (const json& row : first.rows) {
      std::vector<std::string>& cells = rows.emplace_back();
      for (const ResultColumn* key : first.list_keys()) cells.push_back(format_cell(row, *key));
      for (size_t index = 0; index < like.tables.size(); ++index) {
        const json* const same = find_same_row(*like.tables[index], row);
        cells.push_back(same == nullptr ? "–" : format_cell(*same, figure));
        if (index == 0) continue;
        const double ratio = same == nullptr ? 0 : compute_ratio(figure, *same, row);
        cells.push_back(ratio > 0 ? format_figure(ratio) : "–");
      }
    }
    add("<div><h3>" + escape_markup(figure.label) + ", median</h3>\n" + format_html_table(columns, rows) +
        "</div>\n");
  }

  std::string html_;
  size_t charts_ = 0;
};

}  // namespace

std::string make_page(const Collection& collection, const std::string& folder) {
  return Page().make(collection, folder);
}

}  // namespace verbena::tools::report
