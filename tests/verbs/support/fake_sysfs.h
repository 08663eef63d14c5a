// A tree that a test fills as the kernel fills /sys.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace verbena::verbs {

class FakeSysfs {
 public:
  FakeSysfs() {
    char name[] = "/tmp/verbena_sysfs_XXXXXX";
    root_ = mkdtemp(name);
  }
  ~FakeSysfs() { std::filesystem::remove_all(root_); }

  void add_device(const std::string& name, const std::string& bus_address) {
    const std::string place = root_ + "/devices/" + bus_address;
    std::filesystem::create_directories(place);
    std::filesystem::create_directories(root_ + "/class/infiniband/" + name);
    std::filesystem::create_directory_symlink(place, root_ + "/class/infiniband/" + name + "/device");
  }
  void add_file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // Of two ports.
  void add_bond(const std::string& device, const std::string& mode, const std::string& speed) {
    add_file("/class/infiniband/" + device + "/ports/1/gid_attrs/ndevs/0", "bond0\n");
    add_file("/class/net/bond0/bonding/mode", mode + "\n");
    add_file("/class/net/bond0/bonding/slaves", "port0 port1\n");
    add_file("/class/net/bond0/speed", speed + "\n");
    add_file("/class/net/port0/bonding_slave/mii_status", "up\n");
    add_file("/class/net/port1/bonding_slave/mii_status", "up\n");
    add_file("/class/net/port0/device/infiniband/" + device + "/node_type", "1: CA\n");
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

}  // namespace verbena::verbs
