// Everything that verbena-info knows about a host. All outputs are views of this document.
// docs/verbena-info.md describes its JSON, which only document.cc writes and reads.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/parameter_report.h"
#include "topology/topology.h"
#include "verbs/port_survey.h"

namespace verbena::tools::info {

// The version of the JSON. It is incremented when a member changes its meaning or is removed, but not when a
// member is added.
inline constexpr int kSchemaVersion = 1;

// Why the plugin's init fails.
enum class InitFault : uint8_t { kNone, kSettings, kNoDevice };

// Why the plugin does not use a port.
enum class Disuse : uint8_t {
  kNone,         // the plugin uses it
  kNotSelected,  // VERBENA_HCA
  kIwarp,
  kNotOpened,
  kNotQueried,
  kNoAddress,
  kNotActive,
  kInitFailed,     // the plugin's init fails
  kPluginRefused,  // the plugin's log says why
};

enum class LinkLayer : uint8_t { kUnknown, kEthernet, kInfiniBand };
enum class SoftwareDevice : uint8_t { kNone, kSoftverbs, kKernel };
enum class GpuPath : uint8_t { kNone, kDmabuf, kPeerMemory, kSoftverbs };
enum class Level : uint8_t { kInfo, kWarning };
enum class CheckStatus : uint8_t { kOk, kFailed, kSkipped };

// The reason why UNPACK is offered or not.
enum class UnpackReason : uint8_t { kNone, kNoDevice, kSetting, kTuningFile };

// Why a self-test failed, as reported by the process that ran it.
enum class TestFault : uint8_t {
  kNone,
  kWrongData,
  kWrongDescriptors,  // UNPACK's descriptors do not match the message, or remain after it
  kNotStaged,         // although VERBENA_UNPACK=1
  kNoConnection,
  kNoRegistration,
  kNoArrival,    // neither data nor an error
  kPeer,         // the plugin reports an error of the peer, or of the network to it
  kCallFailed,   // any other error of the plugin
  kSilent,       // the process reported nothing for --timeout
  kProcessEnded  // by a signal, or by itself too early
};

struct Tool {
  std::string name, version, build_type, compiler;
};

struct Host {
  std::string name, kernel, architecture, cpu_vendor, cpu_family, cpu_model;
  int64_t cpus = 0;
  std::optional<uint64_t> memlock_limit_bytes;  // empty: no limit
  bool hwloc = false;
};

struct NumaNode {
  int node = 0;
  std::string cpumap;
};

struct Plugin {
  std::string path, problem;
  std::vector<int> net_tables, tuner_tables;
  std::vector<int> rma_tables{}, gin_tables{};  // of NCCL's device API
};

// The position of a PCI device.
struct Place {
  std::string pci_path, pci_address;
  std::optional<int> numa_node;
  std::vector<std::string> switches;  // from the root to the device
  std::string link_speed, link_width;
};

struct Gpu {
  int index = 0;
  std::string name;
  Place place;
  std::string compute_capability;
  bool gpudirect = false, dmabuf = false;
};

struct Gpus {
  std::string driver, problem;
  std::vector<Gpu> devices;
};

struct Gid {
  int index = 0;
  std::string address, type, subnet;
};

// How a NIC reaches GPU memory (GPUDirect), and why not in a better way.
struct GpuMemory {
  GpuPath path = GpuPath::kNone;
  std::string why, remedy;
};

struct GpuDistance {
  int gpu = 0;
  topology::Distance distance = topology::Distance::kUnknown;
};

// A port as the plugin's device.
struct Nic {
  int index = 0;
  std::string name;
  SoftwareDevice software = SoftwareDevice::kNone;
  std::string card_path;
  GpuMemory gpu_memory;
  std::vector<GpuDistance> gpu_distances;
};

struct Port {
  std::string device;
  int port = 0;
  std::string state;  // empty: unknown
  LinkLayer link_layer = LinkLayer::kUnknown;
  std::string interface;  // empty: none, or unknown
  uint32_t speed_mbps = 0;
  int mtu_bytes = 0, max_mtu_bytes = 0;
  uint32_t lid = 0;
  std::string firmware;
  uint32_t vendor_id = 0, part_id = 0;
  std::optional<Gid> gid, other_gid;
  std::string gid_reason;
  verbs::GidReason gid_choice = verbs::GidReason::kNone;
  std::vector<Gid> gids;
  Place place;
  std::string why_not;
  Disuse disuse = Disuse::kNone;
  std::optional<Nic> nic;  // empty if the plugin does not use the port

  bool is_usable() const { return nic.has_value(); }
  std::string title() const { return device + " port " + std::to_string(port); }
};

struct ViewedDevice {
  int index = 0;
  std::string name, pci_path;
  uint64_t guid = 0;
  int port = 0, speed_mbps = 0;
  float latency_us = 0;
  std::vector<std::string> memory;
  int max_communicators = 0, max_receives = 0;
  bool unpack = false;
};

// Devices that NCCL may ask to join.
struct RailSet {
  std::vector<int> members;
  std::string name, refused;  // the joined device's name; or why there is none
  int speed_mbps = 0;

  bool is_joined() const { return refused.empty(); }
};

struct NcclView {
  int table = 0;
  std::string name;
  std::vector<ViewedDevice> devices;
  std::vector<RailSet> rail_sets;
};

struct UnpackOffer {
  bool offered = false;
  UnpackReason reason = UnpackReason::kNone;
  std::string why;
};

struct NcclLibrary {
  std::string path, source, version, problem;
  std::vector<int> net_tables_known, tuner_tables_known;
  std::optional<int> net_table, tuner_table;  // the newest version that the plugin also has
  // The table versions of NCCL's device API; NCCL prefers RMA tables to GIN tables.
  std::optional<int> rma_table{}, gin_table{};
};

struct Message {
  Level level = Level::kInfo;
  std::string text;
};

struct Test {
  std::string name;
  bool ok = false;
  std::string detail;
  TestFault fault = TestFault::kNone;
};

struct Check {
  std::string what, with;
  CheckStatus status = CheckStatus::kOk;
  std::string detail, remedy;
  TestFault fault = TestFault::kNone;
  std::optional<std::vector<Test>> tests;  // empty if none was run
};

struct Advice {
  std::string what, remedy;
};

struct Document {
  Tool tool;
  Host host;
  std::vector<NumaNode> numa_nodes;
  Plugin plugin;
  std::optional<NcclView> nccl_view;
  Gpus gpus;
  std::string problem;  // why the plugin's init fails on this host
  InitFault init_fault = InitFault::kNone;
  std::string verbs_library;
  std::vector<Port> ports;
  std::vector<base::ParameterRow> parameters;
  UnpackOffer unpack;
  std::vector<NcclLibrary> nccl_libraries;
  std::map<std::string, std::string> environment;
  std::vector<Message> messages;
  std::optional<std::vector<Check>> checks;  // of --check
  std::vector<Advice> advice;

  size_t count_usable_ports() const;
  const base::ParameterRow* find_parameter(const std::string& name) const;
};

// The word of a code in JSON; empty for kNone.
const char* describe(GpuPath path);
const char* describe(LinkLayer layer);
const char* describe(CheckStatus status);

std::string format_json(const Document& document);
// Throws ToolError with `source` if the text is not a document or lacks a member.
Document parse_document(const std::string& text, const std::string& source);

// A report of a child process about a test, the plugin or NCCL's view, in one line of JSON.
struct ChildLine {
  std::optional<Plugin> plugin;
  std::optional<NcclView> view;
  std::optional<Test> test;
};
std::string format_child_line(const ChildLine& line);
ChildLine parse_child_line(const std::string& text);

}  // namespace verbena::tools::info
