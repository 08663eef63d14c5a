#include "base/parameter_report.h"

#include <span>

#include "base/parameters.h"
#include "settings/names.h"

namespace verbena::base {
namespace {

using namespace settings;

struct SoftverbsSettings {
#include "settings/as_members.def"
#include "settings/softverbs.def"
};
constexpr SettingOf<SoftverbsSettings> kSoftverbs[] = {
#define VERBENA_TARGET SoftverbsSettings
#include "settings/as_rows.def"
#include "settings/softverbs.def"
#undef VERBENA_TARGET
};
struct PythonSettings {
#include "settings/as_members.def"
#include "settings/python.def"
};
constexpr SettingOf<PythonSettings> kPython[] = {
#define VERBENA_TARGET PythonSettings
#include "settings/as_rows.def"
#include "settings/python.def"
#undef VERBENA_TARGET
};
constexpr NamedSetting kOthers[] = {
#define VERBENA_READ(name, doc) {name, doc},
#include "settings/others.def"
};

constexpr char kMarkdownHead[] =
    "# Parameters\n"
    "\n"
    "Every setting is an environment variable. A component reads its settings when it is initialised. If\n"
    "a setting and one of its aliases are both set, the setting takes precedence. A variable with an empty\n"
    "value counts as not set. Numbers may be hexadecimal (0x...). Sizes may have the suffixes k, m and g\n"
    "(powers of 1024). If a variable begins with `VERBENA_`, `SOFTVERBS_`, `LIBVERBENA_` or\n"
    "`USE_VERBENA_` but is not a setting, a warning names the setting with the most similar name.\n"
    "`verbena-info --parameters` shows the current values. The command shows the settings marked\n"
    "*advanced*, which are rarely needed, only with `--all`. This page is generated from plugin/settings.\n"
    "\n"
    "## The plugin and libverbena.so\n"
    "\n"
    "If a value is malformed or out of range, initialisation fails with an error that names the\n"
    "parameter, the value and the range. Variables that begin with `NCCL_` follow NCCL's rules, and their\n"
    "values never cause an error: a negative number means the default; if a number is above the range, the\n"
    "plugin uses the maximum and logs a warning; if a value is invalid in another way, the plugin uses the\n"
    "default and logs a warning.\n"
    "\n";

constexpr char kRowsHead[] =
    "| name | aliases | default | range | unit | meaning |\n"
    "|---|---|---|---|---|---|\n";

constexpr char kIgnoredHead[] =
    "\n"
    "The following settings of NCCL's IB transport have no effect on the plugin. The plugin logs a warning "
    "if one of "
    "them is set:\n"
    "\n"
    "| setting of NCCL | what Verbena does instead, or what to set instead |\n"
    "|---|---|\n";

constexpr char kSoftverbsHead[] =
    "\n"
    "## softverbs\n"
    "\n"
    "If a value is malformed or out of range, softverbs writes a warning and uses the default "
    "([softverbs.md](softverbs.md)).\n"
    "`VERBENA_ENCRYPTION` also applies to softverbs.\n"
    "\n";

constexpr char kPythonHead[] =
    "\n"
    "## The Python package\n"
    "\n"
    "If a value is malformed, the package issues a warning and uses the default "
    "([inference.md](inference.md)).\n"
    "\n";

constexpr char kOthersHead[] =
    "\n"
    "## Variables of other programs\n"
    "\n"
    "| variable | meaning, or what Verbena does with it |\n"
    "|---|---|\n";

const char* name_kind(SettingKind kind) {
  switch (kind) {
    case SettingKind::kFlag:
      return "flag";
    case SettingKind::kNumber:
      return "number";
    case SettingKind::kBytes:
      return "size";
    case SettingKind::kText:
      return "text";
    case SettingKind::kChoice:
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

template <typename Target>
void add_rows(std::vector<ParameterRow>& rows, std::span<const SettingOf<Target>> settings) {
  const Target defaults;
  for (const SettingOf<Target>& setting : settings) {
    rows.push_back({.name = setting.name,
                    .type = name_kind(setting.kind),
                    .fallback = show_value(setting, defaults),
                    .range = show_range(setting),
                    .unit = setting.unit,
                    .aliases = separate_by_commas(setting.aliases),
                    .doc = setting.doc,
                    .value = show_value(setting, defaults),
                    .origin = kDefaultOrigin,
                    .is_advanced = setting.level == kAdvanced});
  }
}

// Lists the settings of a component that reads them itself. Values that it would reject are shown as not set.
template <typename Target>
std::vector<ParameterRow> list_rows(std::span<const SettingOf<Target>> settings) {
  std::vector<ParameterRow> rows;
  add_rows(rows, settings);
  Target values;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto origin = find_origin(settings[i]);
    if (!origin || !set_value(settings[i], origin->value, values).empty()) continue;
    rows[i].value = show_value(settings[i], values);
    rows[i].origin = origin->name;
  }
  return rows;
}

void append_rows(std::string& page, std::span<const ParameterRow> rows) {
  page += kRowsHead;
  for (const ParameterRow& row : rows) {
    for (const std::string& cell :
         {quote_code(row.name), quote_code(row.aliases), quote_code(row.fallback), row.range, row.unit,
          row.doc + (row.is_advanced ? " *(advanced)*" : "")}) {
      page += "| " + cell + (cell.empty() ? "" : " ");
    }
    page += "|\n";
  }
}

void append_names(std::string& page, std::span<const NamedSetting> settings) {
  for (const NamedSetting& setting : settings) {
    page += "| " + quote_code(setting.name) + " | " + setting.doc + " |\n";
  }
}

std::vector<ParameterRow> list_plugin_rows() {
  std::vector<ParameterRow> rows;
  add_rows(rows, list_parameter_settings());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].value = show_value(list_parameter_settings()[i], parameters());
    rows[i].origin = parameter_origin(rows[i].name);
  }
  return rows;
}

}  // namespace

std::vector<ParameterRow> list_parameters() {
  std::vector<ParameterRow> rows = list_plugin_rows();
  for (const auto& more : {list_rows<SoftverbsSettings>(kSoftverbs), list_rows<PythonSettings>(kPython)})
    rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

std::string format_parameters_markdown() {
  std::string page = kMarkdownHead;
  append_rows(page, list_plugin_rows());
  page += kIgnoredHead;
  append_names(page, list_ignored_settings());
  page += kSoftverbsHead;
  append_rows(page, list_rows<SoftverbsSettings>(kSoftverbs));
  page += kPythonHead;
  append_rows(page, list_rows<PythonSettings>(kPython));
  page += kOthersHead;
  append_names(page, kOthers);
  return page;
}

std::string format_parameters_python() {
  std::string page =
      "\"\"\"The settings of all components. Generated from plugin/settings by verbena-parameters-page "
      "--python.\"\"\"\n"
      "\n"
      "# For each setting that this package reads: its aliases, its default, and the values that it "
      "accepts.\n"
      "SETTINGS: dict[str, tuple[list[str], str, list[str]]] = {\n";
  const auto list_words = [](std::string words, char separator) {
    if (words.empty()) return std::string("[]");
    for (size_t end = words.find(separator); end != std::string::npos; end = words.find(separator, end + 4))
      words.replace(end, 1, "\", \"");
    return "[\"" + words + "\"]";
  };
  for (const SettingOf<PythonSettings>& setting : kPython) {
    page += "    \"" + std::string(setting.name) + "\": (" + list_words(setting.aliases, ' ') + ", \"" +
            show_value(setting, PythonSettings()) + "\", " +
            list_words(setting.kind == SettingKind::kChoice ? setting.words : "", '|') + "),\n";
  }
  page += "}\n\n# The settings that only other components read.\nOTHERS = (\n";
  const auto add_names = [&page](const Setting& setting) {
    page += "    \"" + std::string(setting.name) + "\",\n";
  };
  for (const auto& setting : list_parameter_settings()) add_names(setting);
  for (const auto& setting : kSoftverbs) add_names(setting);
  page += ")\n\n# The prefixes of the settings' names.\nPREFIXES = (\n";
  for (const std::string_view prefix : kNamePrefixes) page += "    \"" + std::string(prefix) + "\",\n";
  return page + ")\n";
}

}  // namespace verbena::base
