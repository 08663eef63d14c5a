#include "verbena-info/text.h"

#include <algorithm>
#include <cstdio>

#include "verbena-info/text_part.h"

namespace verbena::tools::info {
namespace {

std::string format_head(const Json& document) {
  const Json& host = document["host"];
  std::string text = "verbena-info " + read_text(document["tool"], "version") + " (" +
                     read_text(document["tool"], "build_type") + ", " +
                     read_text(document["tool"], "compiler") + ")\n";
  text += format_fact("host", read_text(host, "name") + ": Linux " + read_text(host, "kernel") + ", " +
                                  read_text(host, "architecture") + ", " + show(host["cpus"]) + " CPUs");
  const Json& plugin = document["plugin"];
  text += format_fact("plugin", read_text(plugin, "path"));
  if (document["problem"].is_null()) text += format_fact("", read_text(plugin, "problem"));
  if (plugin.contains("net_tables")) {
    text += format_fact("for NCCL", "net tables " + format_versions(plugin["net_tables"]) +
                                        ", tuner tables " + format_versions(plugin["tuner_tables"]));
  }
  return text + format_fact("verbs library", read_text(document, "verbs_library"));
}

std::string format_messages(const Json& document, bool verbose) {
  std::string text;
  for (const Json& message : document["messages"]) {
    const bool is_warning = message["level"] == "warning";
    if (is_warning || verbose)
      text += (is_warning ? "  WARN  " : "  info  ") + read_text(message, "text") + "\n";
  }
  return text.empty() ? text : "\nTHE PLUGIN SAYS\n" + text;
}

std::string format_environment(const Json& document) {
  std::string text;
  for (const auto& [name, value] : document["environment"].items())
    text += "    " + name + "=" + value.get<std::string>() + "\n";
  return text.empty() ? text : "\nENVIRONMENT\n" + text;
}

}  // namespace

std::string pad(const std::string& text, size_t width) {
  return text.size() < width ? text + std::string(width - text.size(), ' ') : text + " ";
}

// Words are kept whole, however long.
std::string wrap(const std::string& text, size_t first_column, size_t width) {
  std::string wrapped;
  size_t column = first_column;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (column > first_column && column + 1 + end - at > width) {
      wrapped += "\n" + std::string(first_column, ' ');
      column = first_column;
    } else if (column > first_column) {
      wrapped += ' ';
      ++column;
    }
    wrapped.append(text, at, end - at);
    column += end - at;
    at = end + 1;
  }
  return wrapped;
}

std::string format_fact(const std::string& label, const std::string& text) {
  constexpr size_t kLabelWidth = 15;
  const std::string start = "    " + pad(label, kLabelWidth);
  return text.empty() ? "" : start + wrap(text, start.size(), kLineColumns) + "\n";
}

std::string join(const Json& words, const std::string& comma) {
  std::string text;
  for (const Json& word : words)
    text += (text.empty() ? "" : comma) + (word.is_string() ? word.get<std::string>() : word.dump());
  return text;
}

std::string format_versions(const Json& versions) {
  std::string text;
  for (size_t i = 0; i < versions.size();) {
    size_t last = i;
    while (last + 1 < versions.size() && versions[last + 1] == versions[last].get<int>() + 1) ++last;
    text += (text.empty() ? "v" : ", v") + versions[i].dump();
    if (last > i) text += " to v" + versions[last].dump();
    i = last + 1;
  }
  return text.empty() ? "none" : text;
}

std::string format_speed(uint64_t mbps) {
  if (mbps == 0) return "unknown speed";
  char text[32];
  std::snprintf(text, sizeof text, "%g Gb/s", static_cast<double>(mbps) / 1000.0);
  return text;
}

std::string show(const Json& value) {
  if (value.is_null()) return "?";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string format_advice(const Json& document) {
  std::string text;
  for (const Json& advice : document["advice"])
    text += "  * " + wrap(read_text(advice, "what"), 4, kLineColumns) + "\n    -> " +
            wrap(read_text(advice, "try"), 7, kLineColumns) + "\n";
  return text.empty() ? text : "\nWHAT TO DO\n" + text;
}

std::string format_document(const Json& document, const TextOptions& options) {
  return format_head(document) + format_messages(document, options.verbose) +
         format_devices(document, options.verbose) + format_gpus(document) + format_nccl(document) +
         format_parameters(document, options.all_parameters) + format_environment(document) +
         format_advice(document);
}

}  // namespace verbena::tools::info
