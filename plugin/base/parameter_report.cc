#include "base/parameter_report.h"

#include <span>

#include "base/parameter_spec.h"
#include "base/parameters.h"

namespace verbena::base {
namespace {

constexpr char kMarkdownHead[] =
    "# Parameters\n"
    "\n"
    "Every setting is an environment variable, read when the plugin is initialised. The first name wins over "
    "its\n"
    "aliases; an empty value counts as not set. Numbers may be hexadecimal (0x...); sizes take the suffixes "
    "k, m and g\n"
    "(powers of 1024). A value that is malformed or out of range is an error at init that names the "
    "parameter, the\n"
    "value and the range; an unknown `VERBENA_` name is one warning. This page is generated from\n"
    "plugin/base/parameters.def.\n"
    "\n"
    "Values of variables that begin with `NCCL_` follow NCCL's rules and never fail: a negative number means "
    "the\n"
    "default, a number above the range counts as its end, and any other value that does not fit is replaced "
    "by the default,\n"
    "with a warning. The second table lists settings of NCCL's own IB transport that have no effect here; "
    "the "
    "plugin warns\n"
    "if one of them is set.\n"
    "\n"
    "| name | aliases | default | range | unit | meaning |\n"
    "|---|---|---|---|---|---|\n";

constexpr char kIgnoredHead[] =
    "\n"
    "| NCCL's setting without effect | instead |\n"
    "|---|---|\n";

constexpr char kPythonHead[] =
    "\n"
    "| setting of the Python package ([inference.md](inference.md)) | meaning |\n"
    "|---|---|\n";

const char* name_kind(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kFlag:
      return "flag";
    case ParameterKind::kNumber:
      return "number";
    case ParameterKind::kBytes:
      return "size";
    case ParameterKind::kText:
      return "text";
    case ParameterKind::kChoice:
      return "choice";
  }
  return "";
}

std::string separate_by_commas(std::string names) {
  for (size_t blank = names.find(' '); blank != std::string::npos; blank = names.find(' ', blank + 2)) {
    names.replace(blank, 1, ", ");
  }
  return names;
}

std::string quote_code(const std::string& text) {
  return text.empty() ? "" : "`" + text + "`";
}

}  // namespace

std::vector<ParameterRow> list_parameters() {
  const Parameters defaults;
  std::vector<ParameterRow> rows;
  for (const ParameterSpec& spec : list_parameter_specs()) {
    rows.push_back({.name = spec.name,
                    .type = name_kind(spec.kind),
                    .fallback = show_parameter(spec, defaults),
                    .range = show_range(spec),
                    .unit = spec.unit,
                    .aliases = separate_by_commas(spec.aliases),
                    .doc = spec.doc,
                    .value = show_parameter(spec, parameters()),
                    .origin = parameter_origin(spec.name)});
  }
  return rows;
}

std::string format_parameters_markdown() {
  std::string page = kMarkdownHead;
  for (const ParameterRow& row : list_parameters()) {
    for (const std::string& cell : {quote_code(row.name), quote_code(row.aliases), quote_code(row.fallback),
                                    row.range, row.unit, row.doc}) {
      page += "| " + cell + (cell.empty() ? "" : " ");
    }
    page += "|\n";
  }
  const auto add_settings = [&page](const char* head, std::span<const NamedSetting> settings) {
    page += head;
    for (const NamedSetting& setting : settings) {
      page += "| " + quote_code(setting.name) + " | " + setting.doc + " |\n";
    }
  };
  add_settings(kIgnoredHead, list_ignored_settings());
  add_settings(kPythonHead, list_python_settings());
  return page;
}

}  // namespace verbena::base
