#include "verbena-info/collect.h"

#include "verbena-info/advice.h"
#include "verbena-info/devices.h"
#include "verbena-info/gpus.h"
#include "verbena-info/machine.h"
#include "verbena-info/message_log.h"
#include "verbena-info/nccl_libraries.h"
#include "verbena-info/plugin_view.h"
#include "verbena-info/unpack_offer.h"

namespace verbena::tools::info {

Json collect_document(const Options& options) {
  // As the user set it: the plugin's code in this process may add to its own.
  const Environment environment = Environment::copy_own();
  Json document{{"schema_version", kSchemaVersion},
                {"tool", describe_tool()},
                {"host", describe_host()},
                {"numa_nodes", list_numa_nodes()}};
  keep_messages();
  collect_plugin_view(document, options, environment);
  document["gpus"] = collect_gpus();
  collect_devices(document);
  document["unpack"] = explain_unpack(document);
  document["nccl_libraries"] = collect_nccl_libraries(options.nccl, document["plugin"]);
  document["environment"] = list_environment(environment);
  document["messages"] = Json::array();
  for (const Message& message : list_messages())
    document["messages"].push_back(
        {{"level", message.is_warning ? "warning" : "info"}, {"text", message.text}});
  document["advice"] = Json::array();
  add_advice(document);
  return document;
}

}  // namespace verbena::tools::info
