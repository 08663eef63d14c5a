// A machine for the tests: two packages with one NUMA node each.
//   node 0: host bridge 00 with a switch (03.0 and its second function, 04.0) and a device on another root
//           port (08.0); host bridge 10 with one device (11:00.0)
//   node 1: host bridge 20 with one device (21:00.0)
//   the machine itself: host bridge 30 with one device (31:00.0), whose node the firmware does not tell
#pragma once

#include <string>

namespace verbena::topology {

inline std::string describe_pci(int index, const std::string& address) {
  return "gp_index=\"" + std::to_string(index) + "\" pci_busid=\"" + address +
         "\" pci_type=\"0200 [15b3:101e] [15b3:0000] 00\" pci_link_speed=\"31.5\"";
}

inline std::string make_device(int index, const std::string& address) {
  return "<object type=\"PCIDev\" " + describe_pci(index, address) + "/>\n";
}

inline std::string make_pci_bridge(int index, int depth, const std::string& address, const std::string& buses,
                                   const std::string& children) {
  return "<object type=\"Bridge\" bridge_type=\"1-1\" depth=\"" + std::to_string(depth) +
         "\" bridge_pci=\"0000:[" + buses + "]\" " + describe_pci(index, address) + ">\n" + children +
         "</object>\n";
}

inline std::string make_host_bridge(int index, const std::string& buses, const std::string& children) {
  return "<object type=\"Bridge\" gp_index=\"" + std::to_string(index) +
         "\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[" + buses + "]\">\n" + children +
         "</object>\n";
}

inline std::string make_sets(const std::string& mask) {
  return "cpuset=\"" + mask + "\" complete_cpuset=\"" + mask + "\" nodeset=\"" + mask +
         "\" complete_nodeset=\"" + mask + "\"";
}

inline std::string make_package(int number, const std::string& children) {
  const std::string sets = make_sets(number == 0 ? "0x00000001" : "0x00000002");
  const std::string index = "os_index=\"" + std::to_string(number) + "\" ";
  const auto unique = [number](int kind) {
    return " gp_index=\"" + std::to_string(10 * kind + number) + "\"";
  };
  return "<object type=\"Package\" " + index + sets + unique(1) + ">\n" + "<object type=\"NUMANode\" " +
         index + sets + unique(2) + " local_memory=\"1073741824\"/>\n" + "<object type=\"Core\" " + index +
         sets + unique(3) + "><object type=\"PU\" " + index + sets + unique(4) + "/></object>\n" + children +
         "</object>\n";
}

inline std::string make_machine_xml() {
  const std::string below_switch =
      make_device(100, "0000:03:00.0") + make_device(101, "0000:03:00.1") + make_device(102, "0000:04:00.0");
  const std::string first_bridge = make_host_bridge(
      110, "00-0f",
      make_pci_bridge(111, 1, "0000:00:01.0", "01-07",
                      make_pci_bridge(112, 2, "0000:01:00.0", "02-07", below_switch)) +
          make_pci_bridge(113, 1, "0000:00:02.0", "08-08", make_device(103, "0000:08:00.0")));
  const auto lone = [](int index, const std::string& digit) {
    const std::string device = "0000:" + digit + "1:00.0", port = "0000:" + digit + "0:01.0";
    return make_host_bridge(
        index, digit + "0-" + digit + "f",
        make_pci_bridge(index + 1, 1, port, digit + "1-" + digit + "1", make_device(index + 2, device)));
  };
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
         "<topology version=\"2.0\">\n<object type=\"Machine\" os_index=\"0\" " +
         make_sets("0x00000003") +
         " allowed_cpuset=\"0x00000003\" allowed_nodeset=\"0x00000003\" gp_index=\"1\">\n" +
         make_package(0, first_bridge + lone(120, "1")) + make_package(1, lone(130, "2")) + lone(140, "3") +
         "</object>\n</topology>\n";
}

}  // namespace verbena::topology
