#include "report/collection.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "common/error.h"

namespace verbena::tools::report {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> list_files(const std::string& folder) {
  std::error_code error;
  if (fs::is_regular_file(folder, error)) return {folder};
  std::vector<std::string> files;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".json") files.push_back(entry->path().string());
  }
  if (error) throw ToolError(folder + " cannot be read: " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

// Equal for tables that can stand beside each other.
std::string describe_rows(const std::string& tool, const ResultTable& table) {
  std::set<std::string> rows;
  for (const nlohmann::json& row : table.rows) rows.insert(table.describe_keys(row));
  std::string text = tool + "\n" + table.name;
  for (const ResultColumn* key : table.list_keys()) text += "\n" + key->name;
  for (const std::string& row : rows) text += "\n" + row;
  return text;
}

}  // namespace

Collection collect_results(const std::string& folder) {
  Collection collection;
  for (const std::string& file : list_files(folder)) {
    try {
      collection.results.push_back({fs::path(file).stem().string(), read_result(file)});
    } catch (const ToolError& error) {
      collection.left_out.push_back(error.what());
    }
  }
  if (collection.results.empty()) {
    throw ToolError(folder + " has no result: --json FILE of the tools writes them" +
                    (collection.left_out.empty() ? "" : " (" + collection.left_out.front() + ")"));
  }
  std::stable_sort(collection.results.begin(), collection.results.end(),
                   [](const NamedResult& one, const NamedResult& other) {
                     return one.result.started < other.result.started;
                   });
  return collection;
}

std::vector<LikeTables> find_like_tables(const std::vector<NamedResult>& results) {
  std::map<std::string, size_t> places;
  std::vector<LikeTables> all;
  for (const NamedResult& named : results) {
    for (const ResultTable& table : named.result.tables) {
      const auto [place, is_new] = places.try_emplace(describe_rows(named.result.tool, table), all.size());
      if (is_new) all.push_back({named.result.tool, {}, {}});
      LikeTables& like = all[place->second];
      // A result whose tables are alike among themselves is not compared with itself.
      if (std::find(like.results.begin(), like.results.end(), &named) != like.results.end()) continue;
      like.results.push_back(&named);
      like.tables.push_back(&table);
    }
  }
  std::erase_if(
      all, [](const LikeTables& like) { return like.results.size() < 2 || like.tables[0]->rows.empty(); });
  return all;
}

ResultTable join_tables(const LikeTables& like) {
  ResultTable joined{like.tables[0]->name, like.tables[0]->columns};
  joined.columns.insert(joined.columns.begin(), {"result", "result", "", ResultColumn::Role::kKey, "", true});
  for (size_t index = 0; index < like.tables.size(); ++index) {
    for (nlohmann::json row : like.tables[index]->rows) {
      row["result"] = like.results[index]->name;
      joined.rows.push_back(std::move(row));
    }
  }
  return joined;
}

}  // namespace verbena::tools::report
