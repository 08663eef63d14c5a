#include "verbena-info/advice.h"

#include <algorithm>

#include "common/error.h"

namespace verbena::tools::info {
namespace {

constexpr uint64_t kEnoughLockedBytes = 1ULL << 30;

bool any_device(const Json& document, const char* member, const Json& value) {
  return std::any_of(document["devices"].begin(), document["devices"].end(), [&](const Json& device) {
    return device["usable"].get<bool>() && device.value(member, Json()) == value;
  });
}

size_t count_usable(const Json& document) {
  return static_cast<size_t>(std::count_if(document["devices"].begin(), document["devices"].end(),
                                           [](const Json& device) { return device["usable"].get<bool>(); }));
}

bool fails_for_settings(const Json& document) {
  return read_text(document, "problem").starts_with("parameters:");
}

std::string name_interface(const Json& device) {
  const std::string known = read_text(device, "interface");
  return known.empty() ? "INTERFACE" : known;
}

void advise_on_missing_device(Json& document) {
  const Json devices = document["devices"];
  for (const Json& device : devices) {
    if (read_text(device, "why_not").find("leaves it out") == std::string::npos) continue;
    advise(document,
           "No port is usable that VERBENA_HCA (NCCL_IB_HCA) selects: " + read_text(document, "problem"),
           "unset it, or name a device from the list above");
    return;
  }
  advise(document, "There is no RDMA device that the plugin can use: " + read_text(document, "problem"),
         "with a card: load its driver (ls /sys/class/infiniband shows it), install libibverbs1 and "
         "ibverbs-providers, bring the port up and give its interface an address. Without one: "
         "VERBENA_IBVERBS_LIB=softverbs");
}

void advise_on_plugin(Json& document) {
  const std::string problem = read_text(document["plugin"], "problem");
  if (fails_for_settings(document)) {
    advise(document, "The plugin would not start: " + read_text(document, "problem"),
           "correct or unset that variable; verbena-info --parameters shows every range");
  } else if (count_usable(document) > 0 && !document["problem"].is_null()) {
    advise(document, "The plugin would not start: " + read_text(document, "problem"),
           "see what it says above");
  } else if (count_usable(document) == 0 && !document["problem"].is_null()) {
    advise_on_missing_device(document);
  } else if (!problem.empty()) {
    advise(document, "NCCL could not use " + read_text(document["plugin"], "path") + ": " + problem,
           "build or install Verbena's plugin, or name it with --plugin");
  }
}

void advise_on_hardware(Json& document) {
  if (any_device(document, "software", "softverbs")) {
    advise(document, "These are software devices: right for trying and testing, not for speed.",
           "if this host has an RDMA card: ls /sys/class/infiniband must show it (driver), and "
           "libibverbs1 with ibverbs-providers must be installed");
  }
  if (any_device(document, "software", "kernel")) {
    advise(document, "There are software devices of the kernel: right for trying and testing, not for speed.",
           "if this host has an RDMA card, name its ports in VERBENA_HCA; if the card is not listed above, "
           "load its driver");
  }
}

void advise_on_ports(Json& document) {
  const Json devices = document["devices"];
  for (const Json& device : devices) {
    const std::string name = name_port(device);
    const std::string remedy = suggest_for_port(device);
    if (!remedy.empty()) advise(document, name + " is " + read_text(device, "state") + ".", remedy);
    if (read_text(device, "gid_reason").find("link-local") != std::string::npos)
      advise(document, name + " has a link-local address only, which other hosts may not reach.",
             "give its interface an address: ip address add ADDRESS/LENGTH dev " + name_interface(device));
    const Json memory = device.value("gpu_memory", Json::object());
    if (!document["gpus"]["devices"].empty() && !read_text(memory, "try").empty())
      advise(document, name + ": GPUDirect by " + read_text(memory, "path") + ": " + read_text(memory, "why"),
             read_text(memory, "try"));
  }
}

void advise_on_host(Json& document) {
  const Json& limit = document["host"]["memlock_limit_bytes"];
  if (any_device(document, "software", nullptr) && !limit.is_null() && limit < kEnoughLockedBytes)
    advise(
        document,
        "Only " + std::to_string(limit.get<uint64_t>() >> 10) + " KiB of memory may be locked (ulimit -l).",
        "ulimit -l unlimited; for services LimitMEMLOCK=infinity; for containers --ulimit memlock=-1");
  if (!document["host"]["hwloc"].get<bool>())
    advise(document, "Distances between NICs and GPUs are unknown: no libhwloc.so.15.",
           "install libhwloc15 (Debian, Ubuntu) or hwloc-libs (Fedora, RHEL)");
}

void advise_on_nccl(Json& document) {
  if (document["nccl_libraries"].empty())
    advise(document, "No libnccl.so.2 was found.",
           "install NCCL or PyTorch with CUDA, or name a library with --nccl");
  const Json libraries = document["nccl_libraries"];
  for (const Json& library : libraries) {
    if (!library["problem"].is_null() || !library["net_table"].is_null() ||
        library["net_tables_known"].empty())
      continue;
    advise(document, read_text(library, "path") + " shares no table with this plugin.",
           "use NCCL 2.19 or newer");
  }
}

}  // namespace

std::string suggest_for_port(const Json& device) {
  const std::string state = read_text(device, "state");
  if (state.empty() || state == "active") return "";
  return read_text(device, "link_layer") == "InfiniBand"
             ? "check cable and switch, and that a subnet manager runs (ibstat)"
             : "check cable and switch, and set its interface up: ip link set " + name_interface(device) +
                   " up";
}

void add_advice(Json& document) {
  advise_on_plugin(document);
  advise_on_hardware(document);
  advise_on_ports(document);
  advise_on_host(document);
  advise_on_nccl(document);
}

int judge(const Json& document) {
  if (fails_for_settings(document)) return kExitFailed;
  if (count_usable(document) == 0) return kExitNoDevice;
  if (!document["problem"].is_null() || !document["plugin"]["problem"].is_null()) return kExitFailed;
  return kExitOk;
}

}  // namespace verbena::tools::info
