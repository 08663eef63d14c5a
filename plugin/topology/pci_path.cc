#include "topology/pci_path.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <memory>

namespace verbena::topology {
namespace {

constexpr std::string_view kDevicesFolder = "/sys/devices/";

// Removes a hexadecimal number and the separator after it ('\0' for the end) from the front of `text`.
bool take_number(std::string_view& text, char separator, unsigned maximum, unsigned& value) {
  const char* const end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, value, 16);
  if (error != std::errc() || value > maximum) return false;
  text.remove_prefix(static_cast<size_t>(next - text.data()));
  if (separator == '\0') return text.empty();
  if (!text.starts_with(separator)) return false;
  text.remove_prefix(1);
  return true;
}

// Resolves the links of a path. Returns an empty string if there is no such file.
std::string resolve(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(realpath(path.c_str(), nullptr), &std::free);
  return resolved == nullptr ? std::string() : resolved.get();
}

}  // namespace

std::optional<PciAddress> parse_pci_address(std::string_view text) {
  PciAddress address;
  const bool good =
      take_number(text, ':', 0xffffffff, address.domain) && take_number(text, ':', 0xff, address.bus) &&
      take_number(text, '.', 0x1f, address.device) && take_number(text, '\0', 7, address.function);
  if (!good) return std::nullopt;
  return address;
}

std::optional<PciAddress> find_pci_address(std::string_view path) {
  const size_t slash = path.rfind('/');
  return parse_pci_address(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

std::string trim_to_pci_device(std::string_view resolved_path) {
  if (!resolved_path.starts_with(kDevicesFolder)) return {};
  while (resolved_path.size() > kDevicesFolder.size()) {
    if (find_pci_address(resolved_path)) return std::string(resolved_path);
    resolved_path = resolved_path.substr(0, resolved_path.rfind('/'));
  }
  return {};
}

std::string find_pci_path(const std::string& sysfs_entry) {
  return trim_to_pci_device(resolve(sysfs_entry));
}

std::vector<std::string> list_switches(std::string_view pci_path) {
  std::vector<std::string> addresses;
  for (size_t at = 0; at < pci_path.size();) {
    const size_t end = std::min(pci_path.find('/', at), pci_path.size());
    const std::string_view name = pci_path.substr(at, end - at);
    if (parse_pci_address(name)) addresses.emplace_back(name);
    at = end + 1;
  }
  // A root port, then two ports of each switch, then the device.
  std::vector<std::string> switches;
  for (size_t i = 1; i + 2 < addresses.size(); i += 2) switches.push_back(addresses[i]);
  return switches;
}

std::string find_card_path(const std::string& pci_path) {
  if (!find_pci_address(pci_path)) return pci_path;
  const std::string physical = resolve(pci_path + "/physfn");
  std::string card = physical.empty() ? pci_path : physical;
  card.back() = '0';  // of <domain>:<bus>:<device>.<function>
  if (!resolve(card).empty()) return card;
  return physical.empty() ? pci_path : physical;
}

}  // namespace verbena::topology
