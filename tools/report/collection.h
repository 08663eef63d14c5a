#pragma once
#include <string>
#include <vector>

#include "common/result.h"

namespace verbena::tools::report {

// A stored result and how the page calls it.
struct NamedResult {
  std::string name;  // of its file, without folder and ending
  Result result;
};

struct Collection {
  std::vector<NamedResult> results;   // in order of time
  std::vector<std::string> left_out;  // files that are no results, each with the reason
};

// Every *.json of the folder, or the one file. Throws ToolError when the folder cannot be read or has no
// result.
Collection collect_results(const std::string& folder);

// The same table of several results, which have the same rows in it.
struct LikeTables {
  std::string tool;
  std::vector<const NamedResult*> results;
  std::vector<const ResultTable*> tables;  // of each
};
std::vector<LikeTables> find_like_tables(const std::vector<NamedResult>& results);

// One table of them all, with a key that says which result a row is of.
ResultTable join_tables(const LikeTables& like);

}  // namespace verbena::tools::report
