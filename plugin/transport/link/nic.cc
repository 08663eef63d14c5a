#include "transport/link/nic.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"
#include "protocol/wire.h"
#include "topology/pci_path.h"
#include "topology/topology.h"
#include "verbs/queues.h"

namespace verbena::transport {

namespace {

std::string make_name(const verbs::Device& device, bool has_sibling_port) {
  std::string name = "verbena_" + device.name();
  if (has_sibling_port) name += "_" + std::to_string(device.port_number());
  return name;
}

// Counts the devices before this one that are other functions of the same card.
int count_other_functions(const verbs::Device& device, const std::string& path,
                          const std::vector<std::unique_ptr<Nic>>& before) {
  if (path.empty()) return 0;
  return static_cast<int>(std::count_if(before.begin(), before.end(), [&](const auto& nic) {
    return nic->pci_path == path && nic->rails[0]->name() != device.name();
  }));
}

// NCCL treats devices with the same path as one PCI device whose link they share.
std::string find_path(const verbs::Device& device) {
  if (!device.data_direct_path().empty()) return topology::trim_to_pci_device(device.data_direct_path());
  const std::string path = topology::trim_to_pci_device(device.sysfs_path());
  return base::parameters().merge_vfs ? topology::find_card_path(path) : path;
}

// Returns why no connection could be made on this device, or an empty string if the device is usable. The
// plugin checks this before NCCL chooses the device, because NCCL would not try another transport afterwards.
std::string explain_unfit(verbs::Device& device, uint32_t* inline_bytes) {
  auto completions = verbs::CompletionQueue::create(device, 1);
  if (!completions) return "the plugin cannot create a completion queue on this device";
  const auto pair =
      verbs::QueuePair::create(device, *completions, {.send_depth = 1, .operations = {.write = true}});
  if (!pair) return "the plugin cannot create a queue pair on this device";
  *inline_bytes = pair->inline_bytes();
  return {};
}

}  // namespace

uint32_t count_queue_pairs_per_rail(const Nic& nic) {
  auto count = static_cast<uint32_t>(base::parameters().qps_per_connection);
  if (base::parameter_origin("VERBENA_QPS_PER_CONNECTION") != base::kDefaultOrigin) return count;
  for (const verbs::Device* rail : nic.rails) count = std::max(count, rail->bonded_ports());
  return std::min(count, protocol::kMaxQueuePairs);
}

base::Result<std::unique_ptr<NicRegistry>> NicRegistry::discover() {
  auto devices = verbs::discover_devices();
  if (!devices) return devices.error();
  auto registry = std::make_unique<NicRegistry>();
  registry->devices_ = std::move(*devices);
  for (const auto& device : registry->devices_) {
    uint32_t inline_bytes = 0;
    if (const std::string reason = explain_unfit(*device, &inline_bytes); !reason.empty()) {
      base::log_warn("device %s:%d is not used: %s", device->name().c_str(), device->port_number(),
                     reason.c_str());
      continue;
    }
    const auto ports = std::count_if(registry->devices_.begin(), registry->devices_.end(),
                                     [&](const auto& other) { return other->name() == device->name(); });
    auto nic = std::make_unique<Nic>();
    nic->name = make_name(*device, ports > 1);
    nic->pci_path = find_path(*device);
    nic->port = device->port_number() + count_other_functions(*device, nic->pci_path, registry->nics_);
    nic->rails = {device.get()};
    nic->members = {static_cast<int>(registry->nics_.size())};
    nic->guid = device->guid();
    nic->speed_mbps = device->speed_mbps();
    nic->place = device->place();
    nic->supports_gpu_pointers = device->supports_gpu_pointers();
    nic->supports_dmabuf = device->supports_dmabuf();
    nic->has_data_direct = !device->data_direct_path().empty();
    nic->takes_out_of_order = device->max_out_of_order_receives() >= protocol::kMessageRing;
    if (base::parameters().out_of_order) {
      base::log_info("device %s:%d can complete up to %u receives of a queue pair out of order%s",
                     device->name().c_str(), device->port_number(), device->max_out_of_order_receives(),
                     nic->takes_out_of_order
                         ? ""
                         : ". This number is too small, so connections of this device use in-order delivery");
    }
    if (inline_bytes < verbs::kInlineBytes) {
      base::log_info(
          "device %s:%d sends at most %u bytes inline. A grant (a message of the receiver) has %u bytes, so "
          "the plugin sends grants from "
          "registered memory",
          device->name().c_str(), device->port_number(), inline_bytes, verbs::kInlineBytes);
    }
    if (!nic->pci_path.empty()) {
      base::log_info("device %s:%d: %s", device->name().c_str(), device->port_number(),
                     topology::Topology::system().describe_device(nic->pci_path).c_str());
    }
    registry->nics_.push_back(std::move(nic));
  }
  registry->count_physical_ = registry->size();
  if (registry->nics_.empty()) {
    return base::fail(
        base::Status::kSystem,
        "devices: none of the %zu devices can be used. NCCL uses another transport if it has one",
        registry->devices_.size());
  }
  return registry;
}

const Nic* NicRegistry::find(int index) const {
  return index >= 0 && index < size() ? nics_[static_cast<size_t>(index)].get() : nullptr;
}

base::Result<int> NicRegistry::add_virtual(std::span<const int> members) {
  if (members.empty() || members.size() > verbs::kMaxRails) {
    return base::fail(base::Status::kInvalidArgument,
                      "makeVDevice: %zu devices were passed, but a virtual device can have 1 to %d devices",
                      members.size(), verbs::kMaxRails);
  }
  for (int i = count_physical_; i < size(); ++i) {
    if (std::equal(members.begin(), members.end(), nics_[i]->members.begin(), nics_[i]->members.end()))
      return i;
  }
  auto joined = std::make_unique<Nic>();
  joined->supports_gpu_pointers = joined->supports_dmabuf = joined->takes_out_of_order = true;
  for (const int member : members) {
    const Nic* nic = find(member);
    const bool repeated = std::count(members.begin(), members.end(), member) > 1;
    if (nic == nullptr || member >= count_physical_ || repeated) {
      return base::fail(base::Status::kInvalidArgument, "makeVDevice: member %d is %s (devices 0 to %d)",
                        member,
                        nic == nullptr ? "unknown"
                        : repeated     ? "named twice"
                                       : "itself virtual",
                        count_physical_ - 1);
    }
    joined->name += (joined->name.empty() ? "" : "+") + nic->name;
    joined->rails.push_back(nic->rails[0]);
    joined->members.push_back(member);
    joined->speed_mbps += nic->speed_mbps;
    joined->supports_gpu_pointers &= nic->supports_gpu_pointers;
    joined->supports_dmabuf &= nic->supports_dmabuf;
    joined->has_data_direct |= nic->has_data_direct;
    joined->takes_out_of_order &= nic->takes_out_of_order;
  }
  const auto find_common = [&](int16_t verbs::PortPlace::*number) {
    const int16_t first = find(members[0])->place.*number;
    const bool is_common =
        std::ranges::all_of(members, [&](int member) { return find(member)->place.*number == first; });
    return is_common ? first : verbs::PortPlace::kUnknown;
  };
  joined->place = {find_common(&verbs::PortPlace::rail), find_common(&verbs::PortPlace::plane)};
  joined->pci_path = find(members[0])->pci_path;
  joined->port = find(members[0])->port;
  joined->guid = find(members[0])->guid;
  nics_.push_back(std::move(joined));
  return size() - 1;
}

}  // namespace verbena::transport
