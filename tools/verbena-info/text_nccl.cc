// The text's sections about NCCL and about settings.
#include "verbena-info/text.h"
#include "verbena-info/text_part.h"

namespace verbena::tools::info {
namespace {

// How NCCL comes to load this library.
std::string explain_loading(const Json& document) {
  const std::string setting = read_text(document["environment"], "NCCL_NET_PLUGIN");
  if (!setting.empty()) return "NCCL_NET_PLUGIN=" + setting;
  const std::string path = read_text(document["plugin"], "path");
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "its folder" : path.substr(0, slash);
  return "export NCCL_NET_PLUGIN=verbena (not set now), with " + folder + " in LD_LIBRARY_PATH";
}

std::string format_view(const Json& view) {
  std::string text =
      format_fact("table", "v" + show(view["table"]) + " of plugin \"" + read_text(view, "name") +
                               "\" (NCCL_NET=" + read_text(view, "name") + ")");
  for (const Json& device : view["devices"]) {
    text += format_fact("device " + show(device["index"]),
                        read_text(device, "name") + ", " + format_speed(device["speed_mbps"]) + ", port " +
                            show(device["port"]) + ", memory: " + join(device["memory"]) +
                            ", receives at once " + show(device["max_receives"]));
  }
  for (const Json& set : view["rail_sets"]) {
    text += format_fact("devices " + join(set["members"], "+"),
                        set.contains("name") ? "may be joined: " + read_text(set, "name") + ", " +
                                                   format_speed(set["speed_mbps"])
                                             : "are not joined: " + read_text(set, "refused"));
  }
  return text;
}

std::string format_library(const Json& library) {
  const std::string version = read_text(library, "version");
  std::string text = version.empty() ? read_text(library, "problem") : "NCCL " + version;
  if (!library["net_table"].is_null()) {
    text += " takes net table v" + show(library["net_table"]) + " and tuner table " +
            (library["tuner_table"].is_null() ? "none" : "v" + show(library["tuner_table"]));
  } else if (!version.empty()) {
    text +=
        library["net_tables_known"].empty() ? ", which names no net table" : ", which knows no table of ours";
  }
  return "    " + read_text(library, "path") + " (" + read_text(library, "source") + ")\n" +
         format_fact("", text);
}

std::string show_value(const Json& value) {
  return value == "" ? "(empty)" : show(value);
}

std::string format_parameter(const Json& row) {
  const std::string unit = read_text(row, "unit");
  std::string text = "    " + read_text(row, "name") + " = " + show_value(row["value"]) +
                     (unit.empty() || unit == "4.096 us * 2^n" ? "" : " " + unit);
  text += row["origin"] == "default"
              ? " (default"
              : " (from " + read_text(row, "origin") + "; default " + show_value(row["default"]);
  if (!read_text(row, "range").empty() && row["range"] != row["type"]) text += "; " + read_text(row, "range");
  text += ")\n        ";
  std::string doc = read_text(row, "doc");
  if (unit == "4.096 us * 2^n") doc += " (" + unit + ")";
  if (!read_text(row, "aliases").empty()) doc += " [or " + read_text(row, "aliases") + "]";
  return text + wrap(doc, 8, kLineColumns) + "\n";
}

}  // namespace

std::string format_nccl(const Json& document) {
  std::string text = "\nWHAT NCCL WOULD SEE\n";
  const Json& view = document["nccl_view"];
  text += view.is_null() ? format_fact("devices", "none: the plugin does not start") : format_view(view);
  text += format_fact("loaded by", explain_loading(document));
  const Json& unpack = document["unpack"];
  text += format_fact("UNPACK", std::string(unpack["offered"].get<bool>() ? "offered" : "not offered") +
                                    ": " + read_text(unpack, "why"));
  text += "\nNCCL LIBRARIES\n";
  for (const Json& library : document["nccl_libraries"]) text += format_library(library);
  return document["nccl_libraries"].empty() ? text + "    none found\n" : text;
}

std::string format_parameters(const Json& document, bool all) {
  std::string text = "\nPARAMETERS\n";
  size_t left_out = 0;
  for (const Json& row : document["parameters"]) {
    if (!all && row["origin"] == "default") {
      ++left_out;
    } else {
      text += format_parameter(row);
    }
  }
  if (left_out > 0)
    text += "    " + std::to_string(left_out) + " have their defaults: --parameters shows them all\n";
  return text;
}

}  // namespace verbena::tools::info
