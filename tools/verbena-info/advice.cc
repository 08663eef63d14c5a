#include "verbena-info/advice.h"

#include <algorithm>

#include "common/error.h"

namespace verbena::tools::info {
namespace {

constexpr uint64_t kEnoughLockedBytes = 1ULL << 30;

bool any_software(const Document& document, SoftwareDevice kind) {
  return std::any_of(document.ports.begin(), document.ports.end(),
                     [&](const Port& port) { return port.nic && port.nic->software == kind; });
}

std::string name_interface(const Port& port) {
  return port.interface.empty() ? "INTERFACE" : port.interface;
}

class Adviser {
 public:
  explicit Adviser(const Document& document) : document_(document) {}

  std::vector<Advice> list() {
    advise_on_plugin();
    advise_on_hardware();
    for (const Port& port : document_.ports) advise_on_port(port);
    advise_on_host();
    advise_on_nccl();
    return std::move(advice_);
  }

 private:
  void advise(const std::string& what, const std::string& remedy) { advice_.push_back({what, remedy}); }

  void advise_on_plugin() {
    switch (document_.init_fault) {
      case InitFault::kSettings:
        return advise(
            "The plugin would not start: " + document_.problem,
            "correct or unset the variable; verbena-info --parameters shows the range of every setting");
      case InitFault::kNoDevice:
        return advise_on_missing_device();
      case InitFault::kNone:
        break;
    }
    if (!document_.plugin.problem.empty())
      advise("NCCL could not use " + document_.plugin.path + ": " + document_.plugin.problem,
             "build or install Verbena's plugin, or name it with --plugin");
  }

  void advise_on_missing_device() {
    const bool is_filtered =
        std::any_of(document_.ports.begin(), document_.ports.end(),
                    [](const Port& port) { return port.disuse == Disuse::kNotSelected; });
    if (is_filtered)
      return advise("VERBENA_HCA (NCCL_IB_HCA) selects no usable port: " + document_.problem,
                    "unset VERBENA_HCA (NCCL_IB_HCA), or set the variable to a device from the list above");
    advise("There is no RDMA device that the plugin can use: " + document_.problem,
           "if this host has an RDMA card: load the card's driver (ls /sys/class/infiniband must show the "
           "card), install libibverbs1 and ibverbs-providers, bring the port up, and give an address to the "
           "port's interface. If this host has no RDMA card, set VERBENA_IBVERBS_LIB=softverbs");
  }

  void advise_on_hardware() {
    if (any_software(document_, SoftwareDevice::kSoftverbs))
      advise("These are software devices. They are good for trying and testing, but slow.",
             "if this host has an RDMA card, load the card's driver (ls /sys/class/infiniband must show the "
             "card), and install libibverbs1 and ibverbs-providers");
    if (any_software(document_, SoftwareDevice::kKernel))
      advise(
          "Only software devices of the kernel were found. They are good for trying and testing, but slow.",
          "if this host has an RDMA card, name the card's ports in VERBENA_HCA. If the card is not in the "
          "list above, load the card's driver");
  }

  void advise_on_port(const Port& port) {
    const std::string remedy = suggest_for_port(port);
    if (!remedy.empty()) advise(port.title() + " is " + port.state + ".", remedy);
    if (port.gid_choice == verbs::GidReason::kLinkLocal)
      advise(port.title() + " has a link-local address only, which other hosts may not reach.",
             "give an address to the port's interface: ip address add ADDRESS/LENGTH dev " +
                 name_interface(port));
    if (document_.gpus.devices.empty() || !port.nic || port.nic->gpu_memory.remedy.empty()) return;
    const GpuMemory& memory = port.nic->gpu_memory;
    advise(port.title() + ": GPUDirect by " + describe(memory.path) + ": " + memory.why, memory.remedy);
  }

  void advise_on_host() {
    const auto& limit_bytes = document_.host.memlock_limit_bytes;
    if (any_software(document_, SoftwareDevice::kNone) && limit_bytes && *limit_bytes < kEnoughLockedBytes)
      advise("Only " + std::to_string(*limit_bytes >> 10) + " KiB of memory may be locked (ulimit -l).",
             "ulimit -l unlimited; for services LimitMEMLOCK=infinity; for containers --ulimit memlock=-1");
    if (!document_.host.hwloc)
      advise("Distances between NICs and GPUs are unknown: no libhwloc.so.15.",
             "install libhwloc15 (Debian, Ubuntu) or hwloc-libs (Fedora, RHEL)");
  }

  void advise_on_nccl() {
    if (document_.nccl_libraries.empty())
      advise("No libnccl.so.2 was found.",
             "install NCCL or PyTorch with CUDA, or name a library with --nccl");
    if (document_.plugin.net_tables.empty()) return;  // unknown: the plugin could not be loaded
    for (const NcclLibrary& library : document_.nccl_libraries) {
      if (library.problem.empty() && !library.net_table && !library.net_tables_known.empty())
        advise(library.path + " has no plugin interface version in common with this plugin.",
               "use NCCL 2.19 or newer");
    }
  }

  const Document& document_;
  std::vector<Advice> advice_;
};

}  // namespace

std::vector<Advice> list_advice(const Document& document) {
  return Adviser(document).list();
}

std::string suggest_for_port(const Port& port) {
  if (port.disuse != Disuse::kNotActive) return "";
  return port.link_layer == LinkLayer::kInfiniBand
             ? "check cable and switch, and that a subnet manager runs (ibstat)"
             : "check cable and switch, and set the port's interface up: ip link set " +
                   name_interface(port) + " up";
}

std::string suggest_for_test(TestFault fault, const Port& port, bool with_gpu) {
  const std::string leave_out = "VERBENA_HCA=^" + port.device;
  switch (fault) {
    case TestFault::kWrongData:
      return "do not use this path, because NCCL would compute with wrong data. Report the error with the "
             "output of verbena-info --json";
    case TestFault::kWrongDescriptors:
    case TestFault::kNotStaged:
      return "report the error with the output of verbena-info --json. Until the error is fixed, set "
             "VERBENA_UNPACK=0 to avoid staged receives";
    case TestFault::kProcessEnded:
      return "report the crash with the output of verbena-info --json and the core file";
    case TestFault::kNoConnection:
      return "set VERBENA_SOCKET_IFNAME to a network interface that works, because the handshake uses TCP";
    case TestFault::kNoRegistration:
      if (!with_gpu) return "ulimit -l unlimited; for containers --ulimit memlock=-1";
      return port.nic && !port.nic->gpu_memory.remedy.empty()
                 ? port.nic->gpu_memory.remedy
                 : "check nvidia_peermem or dma-buf, IOMMU and PCI ACS; see dmesg";
    case TestFault::kPeer:
      return "no reply arrives on this port. Check cable, switch port and GID (verbena-info -v lists the "
             "GIDs). Until the port works, exclude the device with " +
             leave_out;
    case TestFault::kNoArrival:
      return "requests get lost on this port. See dmesg and the port's error counters (rdma statistic). "
             "Until the port works, exclude the device with " +
             leave_out;
    case TestFault::kCallFailed:
    case TestFault::kSilent:
    case TestFault::kNone:
      break;
  }
  return "run verbena-info --check --verbose, and see dmesg. The device may need a reset or new firmware. "
         "Until the device works, exclude the device with " +
         leave_out;
}

int judge(const Document& document) {
  if (document.init_fault == InitFault::kSettings) return kExitFailed;
  if (document.count_usable_ports() == 0) return kExitNoDevice;
  if (!document.problem.empty() || !document.plugin.problem.empty()) return kExitFailed;
  int status = kExitOk;
  for (const Check& check : document.checks.value_or(std::vector<Check>())) {
    if (check.fault == TestFault::kWrongData) return kExitWrongData;
    if (check.status == CheckStatus::kFailed) status = kExitFailed;
  }
  return status;
}

}  // namespace verbena::tools::info
