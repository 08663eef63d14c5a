// Reads the current address of a port: state, LID, MTU, partition key, and its GID table.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "verbs/gid_choice.h"
#include "verbs/library.h"
#include "verbs/types.h"

namespace verbena::verbs {

struct AddressSettings {
  int gid_index = kNoGid;  // VERBENA_GID_INDEX, kNoGid: choose by gid_preference
  GidPreference gid_preference;
  int partition_key_index = 0;  // VERBENA_PKEY_INDEX; used if partition_key is 0
  uint16_t partition_key = 0;   // VERBENA_PKEY
  std::string sysfs_root = "/sys";
};

class AddressReader {
 public:
  AddressReader(const Library& library, ibv_context* context, std::string device_name, int port_number,
                AddressSettings settings);

  // Returns an empty value, with the reason in *problem, if the port has no usable address.
  std::optional<LocalAddress> read(const ibv_port_attr& port, std::string* problem) const;
  // Returns whether the GIDs of `address` are still at their indices. Makes a few short queries and does not
  // read the whole table.
  bool is_current(const LocalAddress& address) const;
  int port_number() const { return port_number_; }
  // Returns whether the entry at `index` is this GID.
  bool holds(int index, const uint8_t* gid) const;
  // Returns the entries that are not empty.
  std::vector<GidEntry> read_table(const ibv_port_attr& port) const;

 private:
  bool choose_gids(const ibv_port_attr& port, LocalAddress* address, std::string* problem) const;
  GidEntry read_gid(int index) const;
  bool choose_partition(const ibv_port_attr& port, LocalAddress* address, std::string* problem) const;
  uint16_t read_partition_key(int index) const;

  const Library& library_;
  ibv_context* context_;
  std::string device_name_;
  int port_number_;
  AddressSettings settings_;
};

}  // namespace verbena::verbs
