#include "verbena-info/document.h"

#include <algorithm>
#include <span>

#include "common/error.h"

namespace verbena::tools::info {
namespace {

using Json = nlohmann::ordered_json;
using Words = std::span<const char* const>;

// The words of each code, in the order of its enumerators; an empty word is null in JSON.
#define VERBENA_WORDS(Code, ...)                           \
  Words list_words(Code) {                                 \
    static constexpr const char* kWords[] = {__VA_ARGS__}; \
    return kWords;                                         \
  }
VERBENA_WORDS(InitFault, "", "settings", "no_device")
VERBENA_WORDS(Disuse, "", "not_selected", "iwarp", "not_opened", "not_queried", "no_address", "not_active",
              "init_failed", "plugin_refused")
VERBENA_WORDS(LinkLayer, "", "Ethernet", "InfiniBand")
VERBENA_WORDS(SoftwareDevice, "", "softverbs", "kernel")
VERBENA_WORDS(GpuPath, "none", "dma-buf", "peer memory", "softverbs")
VERBENA_WORDS(Level, "info", "warning")
VERBENA_WORDS(UnpackReason, "", "no_device", "setting", "tuning_file")
VERBENA_WORDS(CheckStatus, "ok", "failed", "skipped")
VERBENA_WORDS(TestFault, "", "wrong_data", "wrong_descriptors", "not_staged", "no_connection",
              "no_registration", "no_arrival", "peer", "call_failed", "silent", "process_ended")
VERBENA_WORDS(verbs::GidReason, "", "setting", "best", "link_local", "lid_suffices", "fabric")
VERBENA_WORDS(topology::Distance, "same device", "same PCI switch", "same host bridge", "same NUMA node",
              "other NUMA node", "unknown distance")
#undef VERBENA_WORDS

template <typename Code>
const char* find_word(Code code) {
  return list_words(code)[static_cast<size_t>(code)];
}

// The members of each type with their names in JSON. `members(name, member)` is required; `members.null` is
// null if it is empty; `members.extra` is left out if it is empty, as in documents of older releases.
#define VERBENA_MEMBERS(Type) \
  template <typename Members> \
  void list_members(Members& m, Type& t)

VERBENA_MEMBERS(Tool) {
  m("name", t.name), m("version", t.version), m("build_type", t.build_type), m("compiler", t.compiler);
}
VERBENA_MEMBERS(Host) {
  m("name", t.name), m("kernel", t.kernel), m("architecture", t.architecture),
      m.null("cpu_vendor", t.cpu_vendor);
  m.null("cpu_family", t.cpu_family), m.null("cpu_model", t.cpu_model), m("cpus", t.cpus);
  m.null("memlock_limit_bytes", t.memlock_limit_bytes), m("hwloc", t.hwloc);
}
VERBENA_MEMBERS(NumaNode) {
  m("node", t.node), m("cpumap", t.cpumap);
}
VERBENA_MEMBERS(Plugin) {
  m("path", t.path), m.null("problem", t.problem);
  m.extra("net_tables", t.net_tables), m.extra("tuner_tables", t.tuner_tables);
  m.extra("rma_tables", t.rma_tables), m.extra("gin_tables", t.gin_tables);
}
VERBENA_MEMBERS(Place) {
  m.null("pci_path", t.pci_path), m.null("pci_address", t.pci_address), m.null("numa_node", t.numa_node);
  m("switches", t.switches), m.null("link_speed", t.link_speed), m.null("link_width", t.link_width);
}
VERBENA_MEMBERS(Gpu) {
  m("index", t.index), m("name", t.name), list_members(m, t.place);
  m("compute_capability", t.compute_capability), m("gpudirect", t.gpudirect), m("dmabuf", t.dmabuf);
}
VERBENA_MEMBERS(Gpus) {
  m.null("driver", t.driver), m.null("problem", t.problem), m("devices", t.devices);
}
VERBENA_MEMBERS(Gid) {
  m("index", t.index), m("address", t.address), m("type", t.type), m("subnet", t.subnet);
}
VERBENA_MEMBERS(GpuMemory) {
  m("path", t.path), m("why", t.why), m.null("try", t.remedy);
}
VERBENA_MEMBERS(GpuDistance) {
  m("gpu", t.gpu), m("distance", t.distance);
}
VERBENA_MEMBERS(Nic) {
  m("index", t.index), m("name", t.name), m.null("software", t.software), m.null("card_path", t.card_path);
  m("gpu_memory", t.gpu_memory), m("gpu_distances", t.gpu_distances);
}
VERBENA_MEMBERS(Port) {
  m("device", t.device), m("port", t.port), m.null("state", t.state), m.null("link_layer", t.link_layer);
  m.null("interface", t.interface), m("speed_mbps", t.speed_mbps), m("mtu_bytes", t.mtu_bytes);
  m("max_mtu_bytes", t.max_mtu_bytes), m("lid", t.lid), m.null("firmware", t.firmware);
  m.null("vendor_id", t.vendor_id), m.null("part_id", t.part_id), m.null("gid", t.gid);
  m.extra("gid_reason", t.gid_reason), m.null("gid_reason_code", t.gid_choice),
      m.null("other_gid", t.other_gid);
  m("gids", t.gids), list_members(m, t.place);
  m.flag("usable", t.nic), m.null("why_not", t.why_not), m.null("reason", t.disuse);
  m.inlined(t.nic);
}
VERBENA_MEMBERS(ViewedDevice) {
  m("index", t.index), m("name", t.name), m.null("pci_path", t.pci_path), m("guid", t.guid),
      m("port", t.port);
  m("speed_mbps", t.speed_mbps), m("latency_us", t.latency_us), m("memory", t.memory);
  m("max_communicators", t.max_communicators), m("max_receives", t.max_receives), m("unpack", t.unpack);
}
VERBENA_MEMBERS(RailSet) {
  m("members", t.members), m.extra("name", t.name), m.extra("speed_mbps", t.speed_mbps),
      m.extra("refused", t.refused);
}
VERBENA_MEMBERS(NcclView) {
  m("table", t.table), m("name", t.name), m("devices", t.devices), m("rail_sets", t.rail_sets);
}
VERBENA_MEMBERS(base::ParameterRow) {
  m("name", t.name), m("value", t.value), m("origin", t.origin), m("default", t.fallback), m("type", t.type);
  m("range", t.range), m("unit", t.unit), m("aliases", t.aliases), m("doc", t.doc),
      m.extra("advanced", t.is_advanced);
}
VERBENA_MEMBERS(UnpackOffer) {
  m("offered", t.offered), m.null("reason", t.reason), m("why", t.why);
}
VERBENA_MEMBERS(NcclLibrary) {
  m("path", t.path), m("source", t.source), m.null("version", t.version), m.null("problem", t.problem);
  m("net_tables_known", t.net_tables_known), m.null("net_table", t.net_table);
  m("tuner_tables_known", t.tuner_tables_known), m.null("tuner_table", t.tuner_table);
  m.null("rma_table", t.rma_table), m.null("gin_table", t.gin_table);
}
VERBENA_MEMBERS(Message) {
  m("level", t.level), m("text", t.text);
}
VERBENA_MEMBERS(Test) {
  m("test", t.name), m("ok", t.ok), m("detail", t.detail), m.extra("reason", t.fault);
}
VERBENA_MEMBERS(Check) {
  m("what", t.what), m.null("with", t.with), m("status", t.status), m("detail", t.detail),
      m.null("try", t.remedy);
  m.null("reason", t.fault), m.extra("tests", t.tests);
  bool wrong_data = t.fault == TestFault::kWrongData;  // for readers that do not know the reasons
  if (t.tests) m("wrong_data", wrong_data);
}
VERBENA_MEMBERS(Advice) {
  m("what", t.what), m("try", t.remedy);
}
VERBENA_MEMBERS(Document) {
  m("tool", t.tool), m("host", t.host), m.extra("numa_nodes", t.numa_nodes), m("plugin", t.plugin);
  m("nccl_view", t.nccl_view), m("gpus", t.gpus);
  m.null("problem", t.problem), m.null("reason", t.init_fault);
  m.null("verbs_library", t.verbs_library), m("devices", t.ports), m("parameters", t.parameters);
  m("unpack", t.unpack), m("nccl_libraries", t.nccl_libraries), m("environment", t.environment);
  m("messages", t.messages), m.extra("checks", t.checks), m("advice", t.advice);
}
VERBENA_MEMBERS(ChildLine) {
  m.extra("plugin", t.plugin), m.extra("view", t.view), m.extra("test", t.test);
}
#undef VERBENA_MEMBERS

bool is_empty(const std::string& value) {
  return value.empty();
}
template <typename T>
bool is_empty(const std::vector<T>& value) {
  return value.empty();
}
template <typename T>
bool is_empty(const std::optional<T>& value) {
  return !value;
}
template <typename T>
  requires std::is_scalar_v<T>
bool is_empty(T value) {
  return value == T();
}

template <typename T>
concept Code = std::is_enum_v<T>;
template <typename T>
concept Plain = std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
                std::is_same_v<T, std::map<std::string, std::string>>;

struct Writer {
  Json json = Json::object();

  template <typename T>
  void operator()(const char* name, T& value) {
    json[name] = write(value);
  }
  template <typename T>
  void null(const char* name, T& value) {
    json[name] = is_empty(value) ? Json() : write(value);
  }
  template <typename T>
  void extra(const char* name, T& value) {
    if (!is_empty(value)) json[name] = write(value);
  }
  template <typename T>
  void flag(const char* name, std::optional<T>& value) {
    json[name] = value.has_value();
  }
  template <typename T>
  void inlined(std::optional<T>& value) {
    if (value) list_members(*this, *value);
  }

  template <Plain T>
  static Json write(T& value) {
    return value;
  }
  template <Code T>
  static Json write(T& value) {
    return find_word(value);
  }
  template <typename T>
  static Json write(std::optional<T>& value) {
    return value ? write(*value) : Json();
  }
  template <typename T>
  static Json write(std::vector<T>& values) {
    Json list = Json::array();
    for (T& value : values) list.push_back(write(value));
    return list;
  }
  template <typename T>
  static Json write(T& value) {
    Writer writer;
    list_members(writer, value);
    return std::move(writer.json);
  }
};

struct Reader {
  const Json& json;

  template <typename T>
  void operator()(const char* name, T& value) {
    const auto found = json.find(name);
    if (found == json.end()) throw ToolError(std::string("the document lacks \"") + name + "\"");
    if (!found->is_null()) read(*found, value);
  }
  template <typename T>
  void null(const char* name, T& value) {
    if (json.contains(name)) (*this)(name, value);
  }
  template <typename T>
  void extra(const char* name, T& value) {
    null(name, value);
  }
  template <typename T>
  void flag(const char* name, std::optional<T>& value) {
    bool is_set = false;
    (*this)(name, is_set);
    if (is_set) value.emplace();
  }
  template <typename T>
  void inlined(std::optional<T>& value) {
    if (value) list_members(*this, *value);
  }

  template <Plain T>
  static void read(const Json& from, T& value) {
    from.get_to(value);
  }
  // A newer release may have codes that this one does not know.
  template <Code T>
  static void read(const Json& from, T& value) {
    const Words words = list_words(value);
    const auto found = std::find(words.begin(), words.end(), from.get<std::string>());
    value = found == words.end() ? T() : static_cast<T>(found - words.begin());
  }
  template <typename T>
  static void read(const Json& from, std::optional<T>& value) {
    read(from, value.emplace());
  }
  template <typename T>
  static void read(const Json& from, std::vector<T>& values) {
    for (const Json& one : from) read(one, values.emplace_back());
  }
  template <typename T>
  static void read(const Json& from, T& value) {
    Reader reader{from};
    list_members(reader, value);
  }
};

template <typename T>
std::string dump(T value, int indent) {
  return Writer::write(value).dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

size_t Document::count_usable_ports() const {
  return static_cast<size_t>(
      std::count_if(ports.begin(), ports.end(), [](const Port& p) { return p.is_usable(); }));
}

const base::ParameterRow* Document::find_parameter(const std::string& name) const {
  const auto found =
      std::find_if(parameters.begin(), parameters.end(), [&](const auto& row) { return row.name == name; });
  return found == parameters.end() ? nullptr : &*found;
}

const char* describe(GpuPath path) {
  return find_word(path);
}
const char* describe(LinkLayer layer) {
  return find_word(layer);
}
const char* describe(CheckStatus status) {
  return find_word(status);
}

std::string format_json(const Document& document) {
  Json json{{"schema_version", kSchemaVersion}};
  Document copy = document;
  json.update(Writer::write(copy));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Document parse_document(const std::string& text, const std::string& source) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object() || !json.contains("schema_version"))
    throw ToolError(source + " was not written by verbena-info --json");
  if (json["schema_version"] != kSchemaVersion)
    throw ToolError(source + " has schema version " + json["schema_version"].dump() +
                    ", but this tool reads " + std::to_string(kSchemaVersion) +
                    ". Show the document with the release of verbena-info that wrote it");
  try {
    Document document;
    Reader::read(json, document);
    return document;
  } catch (const std::exception& error) {
    throw ToolError(source + " is damaged: " + error.what() +
                    "; write the document again with verbena-info --json");
  }
}

std::string format_child_line(const ChildLine& line) {
  return dump(line, -1);
}

ChildLine parse_child_line(const std::string& text) {
  ChildLine line;
  Reader::read(Json::parse(text), line);
  return line;
}

}  // namespace verbena::tools::info
