#include "verbena-info/check_advice.h"

#include <string_view>

#include "verbena-info/test_memory.h"

namespace verbena::tools::info {
namespace {

struct Remedy {
  const char* sign;  // in the words of the failure
  const char* remedy;
};

// The first that fits counts.
constexpr Remedy kRemedies[] = {
    {"bytes are wrong", "report it with verbena-info --json; NCCL would compute with these bytes"},
    {"arrived as", "report it with verbena-info --json; NCCL would compute with these bytes"},
    {" descriptors",
     "report it with verbena-info --json; VERBENA_UNPACK=0 does without staged receives meanwhile"},
    {"although VERBENA_UNPACK=1",
     "report it with verbena-info --json; VERBENA_UNPACK=0 does without staged receives meanwhile"},
    {"the process killed", "report it with verbena-info --json and the core file"},
    {"retries exhausted",
     "nothing comes back on this port: check cable, switch port and GID (verbena-info -v lists them); leave "
     "the "
     "device out with VERBENA_HCA=^NAME meanwhile"},
    {"Cannot allocate memory", "ulimit -l unlimited; for containers --ulimit memlock=-1"},
    {"handshake", "the handshake goes over TCP: VERBENA_SOCKET_IFNAME names an interface that may be used"},
    {"connection does not come up",
     "the handshake goes over TCP: VERBENA_SOCKET_IFNAME names an interface that may be used"},
    {"does not arrive",
     "requests vanish on this port: see dmesg and its error counters (rdma statistic); leave the device out "
     "with "
     "VERBENA_HCA=^NAME meanwhile"},
    {"fatal device error", "see dmesg; the device may need a reset or new firmware"},
};

std::string name_device(std::string remedy, const Json& device) {
  constexpr std::string_view kPlace = "NAME";
  const size_t at = remedy.find(kPlace);
  return at == std::string::npos ? remedy : remedy.replace(at, kPlace.size(), read_text(device, "device"));
}

}  // namespace

std::string suggest_remedy(const std::string& words, const Json& device, int gpu) {
  const bool at_registration = words.find("regMr") != std::string::npos;
  if (gpu != kHostMemory && at_registration) {
    const std::string remedy = read_text(device.value("gpu_memory", Json::object()), "try");
    return remedy.empty() ? "check nvidia_peermem or dma-buf, IOMMU and PCI ACS; see dmesg" : remedy;
  }
  for (const Remedy& known : kRemedies) {
    if (words.find(known.sign) != std::string::npos) return name_device(known.remedy, device);
  }
  return name_device(
      "run verbena-info --check --verbose, and see dmesg; VERBENA_HCA=^NAME leaves the device out", device);
}

}  // namespace verbena::tools::info
