// A host as verbena-info's document describes it: two GPUs and two NICs behind PCI switches on two NUMA
// nodes, a third NIC whose port is down.
#pragma once
#include <string>

#include "verbena-info/document.h"

namespace verbena::tools::info {

inline Json make_sample_gpu(int index, const std::string& address, int node, const std::string& pci_switch) {
  return {{"index", index},           {"name", "NVIDIA H200"},
          {"pci_address", address},   {"numa_node", node},
          {"switches", {pci_switch}}, {"compute_capability", "9.0"},
          {"gpudirect", true},        {"dmabuf", true}};
}

inline Json make_sample_port(int index, const std::string& address, int node, const std::string& pci_switch) {
  const std::string device = "mlx5_" + std::to_string(index);
  return {
      {"device", device},
      {"port", 1},
      {"state", "active"},
      {"link_layer", "Ethernet"},
      {"speed_mbps", 400000},
      {"mtu_bytes", 4096},
      {"max_mtu_bytes", 4096},
      {"lid", 0},
      {"firmware", "28.39.1002"},
      {"gid",
       {{"index", 3},
        {"address", "::ffff:10.0." + std::to_string(index) + ".7"},
        {"type", "RoCE v2"},
        {"subnet", "10.0." + std::to_string(index) + ".0/24"}}},
      {"gid_reason", "RoCE v2 and IPv4: the best of 4 entries"},
      {"gids", Json::array()},
      {"pci_path", "/sys/devices/pci0000:15/" + pci_switch + "/" + address},
      {"pci_address", address},
      {"numa_node", node},
      {"switches", {pci_switch}},
      {"usable", true},
      {"why_not", nullptr},
      {"index", index},
      {"name", "verbena_" + device},
      {"software", nullptr},
      {"gpu_memory", {{"path", "dma-buf"}, {"why", "device and GPU driver both have it"}, {"try", nullptr}}},
      {"gpu_distances",
       {{{"gpu", 0}, {"distance", index == 0 ? "same PCI switch" : "other NUMA node"}},
        {{"gpu", 1}, {"distance", index == 1 ? "same PCI switch" : "other NUMA node"}}}}};
}

inline Json make_sample_machine() {
  Json idle = make_sample_port(2, "0000:9c:00.0", 1, "0000:97:00.0");
  idle.update({{"state", "down"}, {"usable", false}, {"why_not", "the port is down"}, {"gid", nullptr}});
  for (const char* member : {"index", "name", "gpu_memory", "gpu_distances", "software"}) idle.erase(member);
  const Json gpus{make_sample_gpu(0, "0000:19:00.0", 0, "0000:17:00.0"),
                  make_sample_gpu(1, "0000:9b:00.0", 1, "0000:97:00.0")};
  const Json ports{make_sample_port(0, "0000:1a:00.0", 0, "0000:17:00.0"),
                   make_sample_port(1, "0000:9a:00.0", 1, "0000:97:00.0"), idle};
  return {{"schema_version", kSchemaVersion},
          {"tool", {{"name", "verbena-info"}, {"version", "0"}, {"build_type", "x"}, {"compiler", "y"}}},
          {"host",
           {{"name", "node7"},
            {"kernel", "6"},
            {"architecture", "x86_64"},
            {"cpus", 192},
            {"memlock_limit_bytes", nullptr},
            {"hwloc", true}}},
          {"plugin",
           {{"path", "/opt/libnccl-net.so"},
            {"problem", nullptr},
            {"net_tables", {7, 8, 12}},
            {"tuner_tables", {2}}}},
          {"nccl_view", nullptr},
          {"gpus", {{"driver", "13.0"}, {"problem", nullptr}, {"devices", gpus}}},
          {"problem", nullptr},
          {"verbs_library", "libibverbs.so.1"},
          {"devices", ports},
          {"parameters", Json::array()},
          {"unpack", {{"offered", false}, {"why", "VERBENA_UNPACK=0"}}},
          {"nccl_libraries", Json::array()},
          {"environment", Json::object()},
          {"messages", Json::array()},
          {"advice", Json::array()}};
}

// Eight GPUs and sixteen NICs with long names, two NICs and a GPU behind each of eight switches, each NIC a
// network.
inline Json make_large_machine() {
  Json machine = make_sample_machine();
  Json gpus = Json::array(), ports = Json::array();
  const auto name_switch = [](int index) { return "0000:" + std::to_string(10 + 10 * index) + ":00.0"; };
  for (int index = 0; index < 8; ++index) {
    gpus.push_back(make_sample_gpu(index, "0000:" + std::to_string(11 + 10 * index) + ":00.0", index / 4,
                                   name_switch(index)));
    gpus.back()["name"] = "NVIDIA Graphics Device with a name that is longer than its card";
  }
  for (int index = 0; index < 16; ++index) {
    ports.push_back(make_sample_port(index, "0000:" + std::to_string(12 + 5 * index) + ":00.0", index / 8,
                                     name_switch(index / 2)));
    Json& port = ports.back();
    port["device"] = "rdma_interface_of_the_fabric_number_" + std::to_string(index);
    port["name"] = "verbena_" + read_text(port, "device");
    port["gid"]["address"] = "fd00:1234:5678:" + std::to_string(1000 + index) + ":aaaa:bbbb:cccc:dddd";
    port["gid"]["subnet"] = "fd00:1234:5678:" + std::to_string(1000 + index) + "::/64";
    port["gpu_distances"] = Json::array();
    for (int gpu = 0; gpu < 8; ++gpu)
      port["gpu_distances"].push_back(
          {{"gpu", gpu}, {"distance", gpu == index / 2 ? "same PCI switch" : "same NUMA node"}});
  }
  machine["gpus"]["devices"] = gpus;
  machine["devices"] = ports;
  machine["host"]["name"] = "node7." + std::string(600, 'x');
  return machine;
}

}  // namespace verbena::tools::info
