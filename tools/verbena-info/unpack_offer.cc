#include "verbena-info/unpack_offer.h"

namespace verbena::tools::info {
namespace {

Json find_parameter(const Json& document, const std::string& name) {
  for (const Json& row : document["parameters"]) {
    if (row["name"] == name) return row;
  }
  return {{"value", ""}, {"origin", ""}};
}

}  // namespace

Json explain_unpack(const Json& document) {
  const Json& view = document["nccl_view"];
  if (view.is_null() || view["devices"].empty())
    return {{"offered", false}, {"why", "the plugin shows no device"}};
  const bool offered = view["devices"][0]["unpack"];
  const Json setting = find_parameter(document, "VERBENA_UNPACK");
  const std::string value = setting["value"];
  if (value != "auto")
    return {{"offered", offered}, {"why", setting["origin"].get<std::string>() + "=" + value}};
  const Json threshold = find_parameter(document, "VERBENA_UNPACK_THRESHOLD");
  const std::string origin = threshold["origin"];
  const bool has_tuning = origin.starts_with("/") || origin.ends_with(".json");
  const std::string measured = has_tuning ? "the tuning file " + origin : "a tuning file";
  if (offered)
    return {{"offered", true}, {"why", "VERBENA_UNPACK=auto, and " + measured + " says that it wins"}};
  return {{"offered", false},
          {"why", has_tuning ? "VERBENA_UNPACK=auto, and " + measured + " does not say that it wins here"
                             : "VERBENA_UNPACK=auto, and no tuning file says that it wins here "
                               "(docs/tuning.md); VERBENA_UNPACK=1 offers it all the same"}};
}

}  // namespace verbena::tools::info
