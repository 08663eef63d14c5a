// VERBENA_HCA, in the syntax of NCCL_IB_HCA: a comma list of name[:port]; names are prefixes, or exact after
// a leading
// `=`; a leading `^` turns the list into what to leave out (`^=mlx5_0:1` is both). Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace verbena::verbs {

class PortFilter {
 public:
  // False if a port is not a number from 1 to 255; *problem then names the entry.
  static bool parse(std::string_view text, PortFilter* filter, std::string* problem);

  bool selects(std::string_view device_name, int port_number) const;
  // False if no port of this device can be selected, so that it need not be opened.
  bool may_select(std::string_view device_name) const;

 private:
  struct Entry {
    std::string name;
    int port_number;  // kAnyPort: all of them
  };
  static constexpr int kAnyPort = 0;

  bool matches_name(const Entry& entry, std::string_view device_name) const;

  bool is_exclusion_ = false, is_exact_ = false;
  std::vector<Entry> entries_;  // empty: everything is selected
};

}  // namespace verbena::verbs
