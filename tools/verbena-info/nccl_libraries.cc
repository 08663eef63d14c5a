#include "verbena-info/nccl_libraries.h"

#include "nccl-perf/nccl_search.h"
#include "verbena-info/table_names.h"

namespace verbena::tools::info {
namespace {

constexpr const char* kNetPrefix = "ncclNetPlugin_v";
constexpr const char* kTunerPrefix = "ncclTunerPlugin_v";

void add_tables(Json& entry, const char* member, const std::set<int>& wanted, const Json& plugin,
                const char* exported) {
  entry[std::string(member) + "s_known"] = wanted;
  entry[member] = choose_table(wanted, plugin.value(exported, Json::array()));
}

}  // namespace

Json collect_nccl_libraries(const std::string& wanted, const Json& plugin) {
  Json libraries = Json::array();
  for (const nccl::NcclCandidate& found : nccl::find_nccl_libraries(wanted)) {
    Json entry{{"path", found.path},
               {"source", found.source},
               {"version", text_or_null(found.version)},
               {"problem", text_or_null(found.problem)}};
    add_tables(entry, "net_table", read_table_names(found.path, kNetPrefix), plugin, "net_tables");
    add_tables(entry, "tuner_table", read_table_names(found.path, kTunerPrefix), plugin, "tuner_tables");
    libraries.push_back(std::move(entry));
  }
  return libraries;
}

}  // namespace verbena::tools::info
