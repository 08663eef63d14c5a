#include <cerrno>
#include <cstdio>
#include <cstring>

#include "softverbs/engine/objects.h"
#include "softverbs/faults/setup.h"
#include "softverbs/wire/address.h"

namespace verbena::softverbs {
namespace {

const int not_a_driver = 0;

// Equal in all processes of a host, and almost certainly different on every other host.
uint64_t hash_host() {
  uint64_t hash = 0xcbf29ce484222325ull;
  char boot_id[64] = "";
  if (FILE* file = fopen("/proc/sys/kernel/random/boot_id", "re")) {
    if (fgets(boot_id, sizeof(boot_id), file) == nullptr) boot_id[0] = '\0';
    fclose(file);
  }
  for (const char* letter = boot_id; *letter != '\0'; ++letter) {
    hash = (hash ^ static_cast<uint8_t>(*letter)) * 0x100000001b3ull;
  }
  return hash;
}

// The GUID of a rail without a network address: locally administered, and different from the GUIDs that
// encode an address.
uint64_t make_guid(uint64_t host, uint32_t device) {
  constexpr uint64_t kPrefix = 0x0253570000000000ull;
  return kPrefix | (host & 0xffffffff00ull) | (device + 1);
}

// 127.a.b.rail, where a.b depends on the host: so an address of another host is recognised as foreign.
void fill_loopback(uint64_t host, uint32_t device, ibv_gid& gid) {
  const auto high = static_cast<uint8_t>(host >> 32), low = static_cast<uint8_t>(host >> 40);
  const uint8_t third = high == 0 && low == 0 ? 1 : low;  // 127.0.0.x is in use on every host
  const uint8_t address[] = {0xff, 0xff, 127, high, third, static_cast<uint8_t>(device + 1)};
  memcpy(gid.raw + 10, address, sizeof(address));
}

Device* make_device(uint32_t index) {
  auto* device = new Device;
  device->index = index;
  device->driver_operations = &not_a_driver;
  device->base.node_type = IBV_NODE_CA;
  device->base.transport_type = IBV_TRANSPORT_IB;
  snprintf(device->base.name, sizeof(device->base.name), "softverbs%u", index);
  snprintf(device->base.dev_name, sizeof(device->base.dev_name), "uverbs%u", index);
  snprintf(device->base.dev_path, sizeof(device->base.dev_path), "/sys/class/infiniband_verbs/uverbs%u",
           index);
  snprintf(device->base.ibdev_path, sizeof(device->base.ibdev_path), "/sys/class/infiniband/softverbs%u",
           index);
  return device;
}

uint64_t swap_to_network(uint64_t value) {
  return __builtin_bswap64(value);
}

}  // namespace

Device* const* get_devices() {
  static Device** devices = [] {
    static Device* list[kMaxDevices];
    for (uint32_t i = 0; i < kMaxDevices; ++i) list[i] = make_device(i);
    return list;
  }();
  return devices;
}

uint32_t count_devices() {
  const size_t wired = wire::get_rail_addresses().size();
  return static_cast<uint32_t>(wired != 0 ? static_cast<int64_t>(wired) : get_config().devices);
}

// There are exactly two GIDs, and one of them is IPv4. NCCL then chooses the IPv4 one without reading the GID
// types from sysfs.
ibv_gid get_gid(uint32_t device, int index) {
  static const uint64_t host = hash_host();
  ibv_gid gid{};
  const auto& addresses = wire::get_rail_addresses();
  const bool is_wired = device < addresses.size();
  if (index == 1 && is_wired) return addresses[device];
  if (index == 0) {
    gid.global.subnet_prefix = swap_to_network(0xfe80000000000000ull);
    const uint64_t named = is_wired ? wire::make_guid(addresses[device], device) : 0;
    gid.global.interface_id = swap_to_network(named != 0 ? named : make_guid(host, device));
  } else if (index == 1) {
    fill_loopback(host, device, gid);
  }
  return gid;
}

bool has_gid(uint32_t device, const ibv_gid& gid) {
  for (int index = 0; index < kGidCount; ++index) {
    const ibv_gid own = get_gid(device, index);
    if (memcmp(&own, &gid, sizeof(gid)) == 0) return true;
  }
  return false;
}

bool is_local_gid(const ibv_gid& gid) {
  const uint32_t rails = wire::is_enabled() ? count_devices() : kMaxDevices;
  for (uint32_t device = 0; device < rails; ++device) {
    if (has_gid(device, gid)) return true;
  }
  return false;
}

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

SOFTVERBS_API ibv_device** ibv_get_device_list(int* count) try {
  if (count != nullptr) *count = 0;
  if (!faults::get_setup().is_valid) return fail_with<ibv_device*>(EINVAL);
  const uint32_t devices = count_devices();
  auto** list = static_cast<ibv_device**>(calloc(devices + 1, sizeof(ibv_device*)));
  if (list == nullptr) return nullptr;
  for (uint32_t i = 0; i < devices; ++i) list[i] = &get_devices()[i]->base;
  if (count != nullptr) *count = static_cast<int>(devices);
  return list;
}
SOFTVERBS_CATCH

SOFTVERBS_API void ibv_free_device_list(ibv_device** list) {
  free(list);
}

SOFTVERBS_API const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}

SOFTVERBS_API int ibv_get_device_index(ibv_device* device) {
  return static_cast<int>(reinterpret_cast<Device*>(device)->index);
}

SOFTVERBS_API __be64 ibv_get_device_guid(ibv_device* device) {
  return get_gid(reinterpret_cast<Device*>(device)->index, 0).global.interface_id;
}
