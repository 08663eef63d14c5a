// RDMA ports and the plugin's devices on them, found by the plugin's own code in this process.
#include <algorithm>
#include <filesystem>

#include "base/job_key.h"
#include "base/log.h"
#include "base/parameters.h"
#include "common/net_plugin.h"
#include "nccl/process.h"
#include "topology/pci_path.h"
#include "verbena-info/collect.h"
#include "verbs/library.h"

namespace verbena::tools::info {
namespace {

constexpr uint64_t kCommunicator = 0x696e666f;

const char* name_gid_type(verbs::GidType type) {
  switch (type) {
    case verbs::GidType::kRoceV2:
      return "RoCE v2";
    case verbs::GidType::kInfiniBandOrRoceV1:
      return "InfiniBand or RoCE v1";
    case verbs::GidType::kUnknown:
      break;
  }
  return "unknown";
}

Gid describe_gid(const verbs::GidEntry& entry) {
  return {entry.index, verbs::format_gid(entry.gid), name_gid_type(entry.type),
          verbs::format_subnet(entry.gid, static_cast<int>(base::parameters().subnet_prefix_bits))};
}

std::optional<Gid> find_gid(const std::vector<Gid>& gids, int index) {
  const auto found =
      std::find_if(gids.begin(), gids.end(), [&](const Gid& gid) { return gid.index == index; });
  return found == gids.end() ? std::nullopt : std::optional(*found);
}

Place find_place(const std::string& pci_path) {
  Place place;
  place.pci_path = pci_path;
  place.switches = topology::list_switches(pci_path);
  place.link_speed = read_first_line(pci_path + "/max_link_speed");
  place.link_width = read_first_line(pci_path + "/max_link_width");
  if (pci_path.empty()) return place;
  place.pci_address = pci_path.substr(pci_path.rfind('/') + 1);
  const int node = topology::Topology::system().find_numa_node(pci_path);
  if (node != topology::kNoNode) place.numa_node = node;
  return place;
}

Port describe_port(const verbs::SurveyedPort& found) {
  Port port;
  port.device = found.device;
  port.port = found.port_number;
  port.state = found.state;
  port.link_layer = found.address.port.link_layer == verbs::kEthernet     ? LinkLayer::kEthernet
                    : found.address.port.link_layer == verbs::kInfiniBand ? LinkLayer::kInfiniBand
                                                                          : LinkLayer::kUnknown;
  port.interface = found.interface;
  port.speed_mbps = found.speed_mbps;
  port.mtu_bytes = found.mtu_bytes;
  port.max_mtu_bytes = found.max_mtu_bytes;
  port.lid = found.address.port.lid;
  port.firmware = found.firmware;
  port.vendor_id = found.vendor_id;
  port.part_id = found.part_id;
  for (const verbs::GidEntry& gid : found.gids) port.gids.push_back(describe_gid(gid));
  port.gid = find_gid(port.gids, found.address.gid_index);
  port.other_gid = find_gid(port.gids, found.address.other_gid_index);
  port.gid_reason = found.gid_reason.text;
  port.gid_choice = found.gid_reason.code;
  port.place = find_place(topology::trim_to_pci_device(found.sysfs_path));
  return port;
}

Disuse name_fault(verbs::PortFault fault) {
  switch (fault) {
    case verbs::PortFault::kIwarp:
      return Disuse::kIwarp;
    case verbs::PortFault::kNotOpened:
      return Disuse::kNotOpened;
    case verbs::PortFault::kNotQueried:
      return Disuse::kNotQueried;
    case verbs::PortFault::kNoAddress:
      return Disuse::kNoAddress;
    case verbs::PortFault::kNotActive:
      return Disuse::kNotActive;
    case verbs::PortFault::kNone:
      break;
  }
  return Disuse::kNone;
}

void explain_disuse(Port& port, const verbs::SurveyedPort& found, InitFault init_fault) {
  if (!found.is_selected) {
    port.disuse = Disuse::kNotSelected;
    port.why_not =
        base::parameter_origin("VERBENA_HCA") + "=" + base::parameters().hca + " does not select this port";
  } else if (found.fault != verbs::PortFault::kNone) {
    port.disuse = name_fault(found.fault);
    port.why_not = found.problem;
  } else if (init_fault != InitFault::kNone) {
    port.disuse = Disuse::kInitFailed;
    port.why_not = "the plugin does not start; see the error above";
  } else {
    port.disuse = Disuse::kPluginRefused;
    port.why_not = "the plugin could not open the device; verbena-info --verbose shows the plugin's log";
  }
}

// Why a hardware device has no dma-buf, in the order of the checks.
std::string explain_missing_dmabuf(const verbs::Device& device) {
  return device.library().reg_dmabuf_mr == nullptr
             ? device.library().path() + " has no function ibv_reg_dmabuf_mr; install rdma-core 34 or newer"
             : "the kernel driver of this device rejects dma-buf; use Linux 5.12 or newer with mlx5, "
               "bnxt_re, efa or irdma";
}

GpuMemory explain_gpu_memory(const verbs::Device& device, const std::vector<Gpu>& gpus) {
  constexpr const char* kLoadPeerMemory = "modprobe nvidia_peermem (part of NVIDIA's driver)";
  constexpr const char* kOpenModules =
      "install the driver's open kernel modules (nvidia-open), which export dma-buf";
  const bool has_gpus = !gpus.empty();
  const bool any_exports = std::any_of(gpus.begin(), gpus.end(), [](const Gpu& gpu) { return gpu.dmabuf; });
  if (device.is_softverbs())
    return {GpuPath::kSoftverbs,
            has_gpus ? "the software device copies GPU memory through CUDA"
                     : "on hosts with a GPU, the software device copies GPU memory through CUDA",
            ""};
  if (device.is_software())
    return {GpuPath::kNone, "a software device of the kernel can access host memory only",
            "use an RDMA card, or VERBENA_IBVERBS_LIB=softverbs"};
  if (device.supports_dmabuf() && (!has_gpus || any_exports))
    return {GpuPath::kDmabuf,
            has_gpus ? "the device and the GPU driver support dma-buf" : "the device supports dma-buf", ""};
  const std::string dmabuf =
      device.supports_dmabuf() ? "the GPU driver exports no dma-buf" : explain_missing_dmabuf(device);
  if (device.supports_gpu_pointers())
    return {GpuPath::kPeerMemory, "nvidia_peermem is loaded; no dma-buf: " + dmabuf,
            device.supports_dmabuf() ? kOpenModules : ""};
  return {GpuPath::kNone, dmabuf + "; and nvidia_peermem is not loaded",
          device.supports_dmabuf() ? kOpenModules : kLoadPeerMemory};
}

// The plugin's device with only this port.
std::optional<Nic> find_nic(const transport::NicRegistry* nics, const Port& port,
                            const std::vector<Gpu>& gpus) {
  for (int index = 0; nics != nullptr && index < nics->size(); ++index) {
    const transport::Nic& nic = *nics->find(index);
    const verbs::Device& rail = *nic.rails[0];
    if (nic.rails.size() != 1 || rail.name() != port.device || rail.port_number() != port.port) continue;
    Nic found;
    found.index = index;
    found.name = nic.name;
    found.software = rail.is_softverbs()  ? SoftwareDevice::kSoftverbs
                     : rail.is_software() ? SoftwareDevice::kKernel
                                          : SoftwareDevice::kNone;
    found.card_path = nic.pci_path;
    found.gpu_memory = explain_gpu_memory(rail, gpus);
    for (const Gpu& gpu : gpus)
      found.gpu_distances.push_back(
          {gpu.index, topology::Topology::system().measure_distance(nic.pci_path, gpu.place.pci_address)});
    return found;
  }
  return std::nullopt;
}

// Normalises the path: removes "bin/..".
std::string shorten(const std::string& path) {
  return path.starts_with('/') ? std::filesystem::path(path).lexically_normal().string() : path;
}

void survey(Document& document, const transport::NicRegistry* nics) {
  const auto settings = verbs::read_discovery_settings(base::parameters().hca);
  if (!settings) return;
  const auto survey = verbs::survey_ports(*settings);
  if (!survey) return;
  document.verbs_library = shorten(survey->library_path);
  for (const verbs::SurveyedPort& found : survey->ports) {
    Port port = describe_port(found);
    port.nic = find_nic(nics, port, document.gpus.devices);
    if (!port.is_usable()) explain_disuse(port, found, document.init_fault);
    document.ports.push_back(std::move(port));
  }
}

// Adds the reason, because the plugin's table reports only that it refuses.
void explain_rail_sets(NcclView& view) {
  const auto setting = base::parameters().merge_nics;
  for (RailSet& set : view.rail_sets) {
    if (set.is_joined()) continue;
    if (setting == 0) set.refused = "VERBENA_MERGE_NICS=0";
    if (setting == 2) set.refused = "VERBENA_MERGE_NICS=2 joins PCI devices only";
  }
}

}  // namespace

void collect_ports(Document& document) {
  // The same steps as in NCCL's init: settings, then devices and the tuning file.
  base::Result<nccl::Context*> context = base::Error();
  if (!base::load_parameters() || !base::load_job_key()) {
    document.init_fault = InitFault::kSettings;
  } else {
    context = nccl::Process::get().open_context(kCommunicator, -1, kNewestNetTable);
    if (!context) document.init_fault = InitFault::kNoDevice;
  }
  if (document.init_fault != InitFault::kNone) document.problem = base::last_failure();
  const auto nics = nccl::Process::get().nics();
  survey(document, nics.get());
  document.parameters = base::list_parameters();
  if (document.nccl_view) explain_rail_sets(*document.nccl_view);
  if (context) (*context)->finalize();
}

}  // namespace verbena::tools::info
