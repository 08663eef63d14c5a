// A host as verbena-info's document describes it: two GPUs and two NICs behind PCI switches on two NUMA
// nodes, a third NIC whose port is down.
#pragma once
#include <string>

#include "verbena-info/document.h"

namespace verbena::tools::info {

inline Place make_sample_place(const std::string& address, int node, const std::string& pci_switch) {
  return {"/sys/devices/pci0000:15/" + pci_switch + "/" + address, address, node, {pci_switch}, "", ""};
}

inline Gpu make_sample_gpu(int index, const std::string& address, int node, const std::string& pci_switch) {
  return {index, "NVIDIA H200", make_sample_place(address, node, pci_switch), "9.0", true, true};
}

inline Port make_sample_port(int index, const std::string& address, int node, const std::string& pci_switch) {
  const std::string number = std::to_string(index);
  const auto distance = [&](int gpu) {
    return gpu == index ? topology::Distance::kSameSwitch : topology::Distance::kOtherNode;
  };
  Port port;
  port.device = "mlx5_" + number;
  port.port = 1;
  port.state = "active";
  port.link_layer = LinkLayer::kEthernet;
  port.speed_mbps = 400000;
  port.mtu_bytes = port.max_mtu_bytes = 4096;
  port.firmware = "28.39.1002";
  port.gid = Gid{3, "::ffff:10.0." + number + ".7", "RoCE v2", "10.0." + number + ".0/24"};
  port.gid_reason = "RoCE v2 and IPv4: the best of 4 entries";
  port.gid_choice = verbs::GidReason::kBest;
  port.gids = {*port.gid};
  port.place = make_sample_place(address, node, pci_switch);
  port.nic = Nic{index,
                 "verbena_" + port.device,
                 SoftwareDevice::kNone,
                 "",
                 {GpuPath::kDmabuf, "device and GPU driver both have it", ""},
                 {{0, distance(0)}, {1, distance(1)}}};
  return port;
}

inline Document make_sample_machine() {
  Document machine;
  machine.tool = {"verbena-info", "0", "x", "y"};
  machine.host = {"node7", "6", "x86_64", "", "", "", 192, std::nullopt, true};
  machine.plugin = {"/opt/libnccl-net.so", "", {7, 8, 12}, {2}};
  machine.gpus = {"13.0",
                  "",
                  {make_sample_gpu(0, "0000:19:00.0", 0, "0000:17:00.0"),
                   make_sample_gpu(1, "0000:9b:00.0", 1, "0000:97:00.0")}};
  machine.verbs_library = "libibverbs.so.1";
  machine.ports = {make_sample_port(0, "0000:1a:00.0", 0, "0000:17:00.0"),
                   make_sample_port(1, "0000:9a:00.0", 1, "0000:97:00.0"),
                   make_sample_port(2, "0000:9c:00.0", 1, "0000:97:00.0")};
  Port& idle = machine.ports[2];
  idle.state = "down";
  idle.why_not = "the port is down";
  idle.disuse = Disuse::kNotActive;
  idle.gid.reset();
  idle.nic.reset();
  machine.unpack = {false, UnpackReason::kSetting, "VERBENA_UNPACK=0"};
  return machine;
}

}  // namespace verbena::tools::info
