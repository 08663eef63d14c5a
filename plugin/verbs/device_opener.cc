#include "verbs/device_opener.h"

#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "verbs/address_handles.h"
#include "verbs/async_events.h"
#include "verbs/mlx5.h"
#include "verbs/port_speed.h"
#include "verbs/port_state.h"

namespace verbena::verbs {
namespace {

constexpr uint32_t kSoftverbsVendor = 0x5356;
constexpr uint32_t kKernelSoftwareVendor = 0xffffff;  // rxe

std::string describe_port(const std::string& name, int port_number, const ibv_port_attr& port) {
  return name + ":" + std::to_string(port_number) + " (" + describe_port_state(port.state) + ", " +
         (port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand") + ")";
}

bool is_kernel_software(const std::string& name, uint32_t vendor) {
  return vendor == kKernelSoftwareVendor || name.starts_with("rxe");
}

bool is_nvidia(uint32_t vendor) {
  return vendor == 0x15b3 || vendor == 0x02c9;
}

void copy_limits(const ibv_device_attr& limits, uint32_t* qp_entries, uint32_t* cq_entries,
                 uint32_t* srq_entries) {
  *qp_entries = static_cast<uint32_t>(std::max(limits.max_qp_wr, 0));
  *cq_entries = static_cast<uint32_t>(std::max(limits.max_cqe, 0));
  *srq_entries = limits.max_srq > 0 ? static_cast<uint32_t>(std::max(limits.max_srq_wr, 0)) : 0;
}

}  // namespace

// With some drivers the codes describe the link of one port of a bond, with others all ports together.
uint32_t read_speed_mbps(const Library& library, ibv_context* context, int port_number,
                         const ibv_port_attr& port, uint32_t speed_code, const Bond& bond) {
  constexpr uint64_t kUnitMbps = 100;
  uint64_t units = 0;
  const bool is_told = library.query_port_speed != nullptr &&
                       library.query_port_speed(context, static_cast<uint32_t>(port_number), &units) == 0;
  if (is_told && units != 0) return static_cast<uint32_t>(std::min(units * kUnitMbps, uint64_t{UINT32_MAX}));
  return std::max(compute_speed_mbps(port.active_width, speed_code), bond.speed_mbps);
}

void DeviceOpener::open_ports(ibv_device* device, const PortFilter& filter,
                              std::vector<std::unique_ptr<Device>>* opened,
                              std::vector<std::string>* seen) const {
  const std::string name = library_->get_device_name(device);
  if (!filter.may_select(name)) {
    seen->push_back(name);
    return;
  }
  if (device->transport_type == IBV_TRANSPORT_IWARP) {
    base::log_warn("device %s is not used: %s", name.c_str(), kNoIwarp);
    return;
  }
  std::unique_ptr<Device> candidate = open_context(device);
  if (candidate == nullptr) return;
  ibv_device_attr limits{};
  if (const int error = library_->query_device(candidate->context_, &limits); error != 0) {
    base::log_warn("device %s is not used, because the device cannot be queried (errno %d)", name.c_str(),
                   error);
    return;
  }
  for (int port_number = 1; port_number <= limits.phys_port_cnt; ++port_number) {
    // Each port gets its own context, so that each Device receives all events that concern it.
    if (candidate == nullptr) candidate = open_context(device);
    if (candidate == nullptr) return;
    ibv_port_attr port{};
    uint32_t speed_code = 0;
    const int error =
        library_->read_port(candidate->context_, static_cast<uint8_t>(port_number), &port, &speed_code);
    if (error != 0) {
      base::log_warn("device %s:%d is not used, because the port cannot be queried (errno %d)", name.c_str(),
                     port_number, error);
      continue;
    }
    seen->push_back(describe_port(name, port_number, port));
    if (port.state != IBV_PORT_ACTIVE || !filter.selects(name, port_number)) continue;
    const std::string& root = settings_.address.sysfs_root;
    const Bond bond = read_bond(root, find_interface(root, name, port_number), name);
    candidate->speed_mbps_ =
        read_speed_mbps(*library_, candidate->context_, port_number, port, speed_code, bond);
    candidate->bonded_ports_ = bond.ports;
    if (open_port(candidate.get(), port_number, port, limits)) {
      candidate->place_ = filter.find_place(name, port_number);
      opened->push_back(std::exchange(candidate, nullptr));
    }
  }
}

std::unique_ptr<Device> DeviceOpener::open_context(ibv_device* device) const {
  std::unique_ptr<Device> opened(new Device);
  opened->library_ = library_;
  opened->name_ = library_->get_device_name(device);
  opened->context_ = library_->open_device(device);
  if (opened->context_ != nullptr) return opened;
  const int error = errno;
  base::log_warn("device %s is not used, because the device cannot be opened: %s; %s (errno %d)",
                 opened->name_.c_str(), std::strerror(error), library_->advise_on_open(error), error);
  return nullptr;
}

bool DeviceOpener::open_port(Device* device, int port_number, const ibv_port_attr& port,
                             const ibv_device_attr& limits) const {
  device->port_number_ = port_number;
  device->guid_ = be64toh(limits.sys_image_guid != 0 ? limits.sys_image_guid : limits.node_guid);
  copy_limits(limits, &device->max_qp_entries_, &device->max_cq_entries_, &device->max_srq_entries_);
  device->address_handles_->set_limit(limits.max_ah);
  device->max_message_bytes_ = port.max_msg_sz;
  device->max_outstanding_reads_ = static_cast<uint32_t>(
      std::clamp(std::min(limits.max_qp_rd_atom, limits.max_qp_init_rd_atom), 1, UINT8_MAX));
  device->offers_atomics_ = limits.atomic_cap != IBV_ATOMIC_NONE;
  device->supports_atomics_.store(device->offers_atomics_, std::memory_order_relaxed);
  device->sysfs_path_ = find_pci_path(settings_.address.sysfs_root, device->name_);
  device->is_softverbs_ = limits.vendor_id == kSoftverbsVendor;
  device->is_software_ = device->is_softverbs_ || is_kernel_software(device->name_, limits.vendor_id);
  if (!read_address(device, port)) return false;
  device->domain_ = library_->alloc_pd(device->context_);
  if (device->domain_ == nullptr) {
    base::log_warn("device %s:%d is not used, because no protection domain can be allocated (errno %d)",
                   device->name_.c_str(), port_number, errno);
    return false;
  }
  // softverbs registers CUDA pointers directly and does not need a dma-buf descriptor.
  device->supports_dmabuf_ = !device->is_softverbs_ && tries_dmabuf(*device);
  device->supports_gpu_pointers_ =
      device->is_softverbs_ ? reaches_gpus(*device)
                            : !device->is_software_ && has_peer_memory_module(settings_.address.sysfs_root);
  device->mlx5_ = Mlx5::find(device->context_);
  device->is_mlx5_ = device->mlx5_ != nullptr || is_nvidia(limits.vendor_id);
  device->mlx5_makes_pairs_ = device->mlx5_ != nullptr && device->mlx5_->creates_pairs();
  if (device->mlx5_ != nullptr && device->supports_dmabuf_ && settings_.data_direct) {
    device->data_direct_path_ =
        device->mlx5_->find_data_direct_path(device->context_, settings_.address.sysfs_root);
  }
  if (device->mlx5_ != nullptr && settings_.out_of_order)
    device->max_out_of_order_receives_ = device->mlx5_->count_out_of_order_receives(device->context_);
  device->events_ = std::make_unique<AsyncEvents>(*device);
  return true;
}

bool DeviceOpener::read_address(Device* device, const ibv_port_attr& port) const {
  device->address_reader_ = std::make_unique<AddressReader>(*library_, device->context_, device->name_,
                                                            device->port_number_, settings_.address);
  std::string problem;
  auto address = device->address_reader_->read(port, &problem);
  if (!address) {
    base::log_warn("device %s:%d is not used: %s", device->name_.c_str(), device->port_number_,
                   problem.c_str());
    return false;
  }
  device->address_ = *address;
  if (!address->is_own && !device->sysfs_path_.empty()) {
    base::log_warn(
        "device %s:%d: none of the addresses in the port's GID table is assigned to an interface in this "
        "network namespace, so the chosen GID (index %d, %s) may belong to another container. In that case, "
        "choose another index with VERBENA_GID_INDEX",
        device->name_.c_str(), device->port_number_, address->gid_index,
        format_gid(address->port.gid).c_str());
  }
  return true;
}

// Asks softverbs. Its answer for one device is valid for all its devices.
bool DeviceOpener::reaches_gpus(const Device& device) const {
  const char* const why = library_->explain_no_gpu == nullptr ? nullptr : library_->explain_no_gpu();
  if (why != nullptr && !std::exchange(has_told_of_gpus_, true)) {
    base::log_warn(
        "device %s:%d and the other software devices support host memory only, so NCCL copies GPU data "
        "through the host: %s",
        device.name_.c_str(), device.port_number_, why);
  }
  return why == nullptr;
}

// A device without support for dma-bufs rejects every descriptor with the same error. A device with support
// checks the descriptor, and -1 is an invalid one.
bool DeviceOpener::tries_dmabuf(const Device& device) const {
  if (library_->reg_dmabuf_mr == nullptr) return false;
  errno = 0;
  ibv_mr* region = library_->reg_dmabuf_mr(device.domain_, 0, 0, 0, -1, 0);
  if (region != nullptr) library_->dereg_mr(region);
  return region == nullptr && errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS;
}

}  // namespace verbena::verbs
