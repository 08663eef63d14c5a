// VERBENA_HCA, in the syntax of NCCL_IB_HCA: a comma list of name[:port[:rail[:plane]]]; names are prefixes,
// or exact after a leading `=`; a leading `^` turns the list into what to leave out (`^=mlx5_0:1` is both).
// Rail and plane are reported to NCCL. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbs/types.h"

namespace verbena::verbs {

class PortFilter {
 public:
  // False, with the entry in *problem, if a port is not a number from 1 to 255 (empty: any port), or a rail
  // or plane is not one from 0 to 32767 (empty: unknown).
  static bool parse(std::string_view text, PortFilter* filter, std::string* problem);

  bool selects(std::string_view device_name, int port_number) const;
  // Rail and plane from the first entry that selects the port. A list with `^` has none.
  PortPlace find_place(std::string_view device_name, int port_number) const;
  // Entries that name none of these devices.
  std::vector<std::string> list_strangers(std::span<const std::string> device_names) const;
  // False if no port of this device can be selected, so that it need not be opened.
  bool may_select(std::string_view device_name) const;

 private:
  struct Entry {
    std::string name;
    int port_number;  // kAnyPort: all of them
    PortPlace place;
  };
  static constexpr int kAnyPort = 0;

  bool matches_name(const Entry& entry, std::string_view device_name) const;
  const Entry* find(std::string_view device_name, int port_number) const;

  bool is_exclusion_ = false, is_exact_ = false;
  std::vector<Entry> entries_;  // empty: everything is selected
};

}  // namespace verbena::verbs
