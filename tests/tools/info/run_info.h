#pragma once
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tools/run_tool.h"
#include "verbena-info/document.h"

namespace verbena::tools::info {

using Json = nlohmann::json;

// Over softverbs rails that no other process sees. `settings` are assignments, as a shell takes them.
inline ToolRun run_info(const std::string& settings, const std::string& arguments) {
  const std::string common =
      "unset VERBENA_HCA NCCL_IB_HCA VERBENA_TC; VERBENA_IBVERBS_LIB=softverbs SOFTVERBS_JOB=info$$ ";
  // No library of NCCL is asked for its version: that takes time, and other tests do it.
  return run_tool(common + settings + " timeout -s KILL 240 " + VERBENA_INFO +
                  " --nccl /nonexistent --plugin " + PLUGIN + " " + arguments);
}

// What the tool writes, member by member: the JSON is its interface.
inline Json read_json(const ToolRun& run) {
  Json document = Json::parse(run.output, nullptr, false);
  EXPECT_TRUE(document.is_object()) << run.output;
  return document.is_object() ? document : Json::object();
}

}  // namespace verbena::tools::info
