// VERBENA_HCA, with the syntax of NCCL_IB_HCA: a comma-separated list of name[:port[:rail[:plane]]]. Names
// are prefixes, or exact names after a leading `=`. A leading `^` excludes the listed ports instead of
// selecting them (`^=mlx5_0:1` combines both). Rail and plane are reported to NCCL. Pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbs/types.h"

namespace verbena::verbs {

class PortFilter {
 public:
  // Returns false, with the entry in *problem, if a port is not a number from 1 to 255 (empty: any port), or
  // a rail or plane is not a number from 0 to 32767 (empty: unknown).
  static bool parse(std::string_view text, PortFilter* filter, std::string* problem);

  bool selects(std::string_view device_name, int port_number) const;
  // Returns rail and plane of the first entry that selects the port. Unknown in a list with `^`.
  PortPlace find_place(std::string_view device_name, int port_number) const;
  // Returns the entries that match none of these devices.
  std::vector<std::string> list_strangers(std::span<const std::string> device_names) const;
  // Returns false if no port of this device can be selected, so that the device need not be opened.
  bool may_select(std::string_view device_name) const;

 private:
  struct Entry {
    std::string name;
    int port_number;  // kAnyPort: all ports
    PortPlace place;
  };
  static constexpr int kAnyPort = 0;

  bool matches_name(const Entry& entry, std::string_view device_name) const;
  const Entry* find(std::string_view device_name, int port_number) const;

  bool is_exclusion_ = false, is_exact_ = false;
  std::vector<Entry> entries_;  // empty: all ports are selected
};

}  // namespace verbena::verbs
