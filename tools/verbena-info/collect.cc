#include "verbena-info/collect.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <mutex>

#include "base/log.h"
#include "common/cuda_driver.h"
#include "common/error.h"
#include "topology/pci_path.h"

namespace verbena::tools::info {
namespace {

// The lines that the plugin's code logs in this process, each once.
struct KeptMessages {
  std::mutex mutex;  // guards what follows
  std::vector<Message> messages;
};

KeptMessages& kept() {
  static auto* const messages = new KeptMessages;  // never freed: the plugin's threads may outlive main
  return *messages;
}

void keep_message(base::LogLevel level, const char*, int, const char* text) {
  if (level == base::LogLevel::kTrace) return;
  const std::string words = strip_prefix(text);
  const std::lock_guard lock(kept().mutex);
  auto& messages = kept().messages;
  const bool is_known =
      std::any_of(messages.begin(), messages.end(), [&](const Message& m) { return m.text == words; });
  if (!is_known) messages.push_back({level == base::LogLevel::kWarn ? Level::kWarning : Level::kInfo, words});
}

// The value for the first processor; empty if this architecture has no such line.
std::string read_cpuinfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    const size_t end = line.find_last_not_of(" \t", colon - 1) + 1;
    if (line.substr(0, end) == key) return line.substr(std::min(colon + 2, line.size()));
  }
  return {};
}

Host describe_host() {
  utsname names{};
  uname(&names);
  Host host{names.nodename,
            names.release,
            names.machine,
            read_cpuinfo("vendor_id"),
            read_cpuinfo("cpu family"),
            read_cpuinfo("model"),
            sysconf(_SC_NPROCESSORS_ONLN),
            std::nullopt,
            topology::Topology::system().is_known()};
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    host.memlock_limit_bytes = limit.rlim_cur;
  return host;
}

std::vector<NumaNode> list_numa_nodes() {
  constexpr int kMaxNodes = 256;
  std::vector<NumaNode> nodes;
  for (int node = 0; node < kMaxNodes; ++node) {
    const std::string map =
        read_first_line("/sys/devices/system/node/node" + std::to_string(node) + "/cpumap");
    if (!map.empty()) nodes.push_back({node, map});
  }
  return nodes;
}

std::map<std::string, std::string> list_environment(const Environment& environment) {
  const auto is_of_interest = [](const std::string& name) {
    return name.starts_with("NCCL_") || name.starts_with("VERBENA_") || name.starts_with("SOFTVERBS_") ||
           name == "LD_LIBRARY_PATH" || name == "LD_PRELOAD" || name == "CUDA_VISIBLE_DEVICES";
  };
  std::map<std::string, std::string> variables;
  for (const std::string& assignment : environment.list_all()) {
    const size_t equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    if (is_of_interest(name)) variables[name] = assignment.substr(equals + 1);
  }
  return variables;
}

// As in sysfs: lower case, with four digits for the domain.
std::string find_pci_address(const CudaDriver& driver, CUdevice device) {
  std::array<char, 32> text{};
  driver.check(driver.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device),
               "cuDeviceGetPCIBusId");
  std::string address = text.data();
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const size_t domain_digits = address.find(':');
  return domain_digits == 8 ? address.substr(4) : address;
}

Gpu describe_gpu(const CudaDriver& driver, int index) {
  CUdevice device = 0;
  driver.check(driver.cuDeviceGet(&device, index), "cuDeviceGet");
  std::array<char, 256> name{};
  driver.check(driver.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device),
               "cuDeviceGetName");
  const auto read_attribute = [&](int number) {
    int value = 0;  // stays 0 if this driver does not know the attribute
    return driver.cuDeviceGetAttribute(&value, number, device) == CUDA_SUCCESS ? value : 0;
  };
  Gpu gpu;
  gpu.index = index;
  gpu.name = name.data();
  gpu.place.pci_address = find_pci_address(driver, device);
  gpu.place.pci_path = topology::find_pci_path("/sys/bus/pci/devices/" + gpu.place.pci_address);
  gpu.place.switches = topology::list_switches(gpu.place.pci_path);
  const int node = topology::Topology::system().find_numa_node(gpu.place.pci_address);
  if (node != topology::kNoNode) gpu.place.numa_node = node;
  gpu.compute_capability = std::to_string(read_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)) +
                           "." + std::to_string(read_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  gpu.gpudirect = read_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0;
  gpu.dmabuf = read_attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0;
  return gpu;
}

Gpus collect_gpus() {
  Gpus gpus;
  std::string problem, why;
  const int count = count_cuda_devices(problem);
  const CudaDriver* const driver = load_cuda_driver(why);
  int version = 0;
  if (driver != nullptr && driver->cuDriverGetVersion(&version) == CUDA_SUCCESS)
    gpus.driver = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  if (count == 0) {
    gpus.problem = problem.empty() ? "the driver shows no GPU; check CUDA_VISIBLE_DEVICES"
                                   : "no usable CUDA driver: " + problem;
    return gpus;
  }
  try {
    for (int index = 0; index < count; ++index) gpus.devices.push_back(describe_gpu(*driver, index));
  } catch (const ToolError& error) {
    gpus.problem = error.what();
  }
  return gpus;
}

}  // namespace

std::string read_first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Document collect_document(const InfoOptions& options) {
  // Copied first, as the user set it: the plugin's code may change the environment of this process.
  const Environment environment = Environment::copy_own();
  Document document;
  document.tool = {"verbena-info", VERBENA_RELEASE, VERBENA_BUILD_TYPE, VERBENA_COMPILER};
  document.host = describe_host();
  document.numa_nodes = list_numa_nodes();
  base::set_log_sink(keep_message);
  collect_view(document, options, environment);
  document.gpus = collect_gpus();
  collect_ports(document);
  document.unpack = explain_unpack(document);
  collect_nccl_libraries(document, options.nccl);
  document.environment = list_environment(environment);
  const std::lock_guard lock(kept().mutex);
  document.messages = kept().messages;
  return document;
}

UnpackOffer explain_unpack(const Document& document) {
  if (!document.nccl_view || document.nccl_view->devices.empty())
    return {false, UnpackReason::kNoDevice, "the plugin shows no device"};
  const bool offered = document.nccl_view->devices[0].unpack;
  const base::ParameterRow none;
  const auto find = [&](const char* name) -> const base::ParameterRow& {
    const base::ParameterRow* const row = document.find_parameter(name);
    return row == nullptr ? none : *row;
  };
  const base::ParameterRow& setting = find("VERBENA_UNPACK");
  if (setting.value != "auto") return {offered, UnpackReason::kSetting, setting.origin + "=" + setting.value};
  const std::string origin = find("VERBENA_UNPACK_THRESHOLD").origin;
  const bool has_tuning = origin.starts_with("/") || origin.ends_with(".json");
  const std::string measured = has_tuning ? "the tuning file " + origin : "a tuning file";
  if (offered)
    return {true, UnpackReason::kTuningFile,
            "VERBENA_UNPACK=auto, and " + measured + " says that UNPACK is faster here"};
  return {false, UnpackReason::kTuningFile,
          has_tuning ? "VERBENA_UNPACK=auto, and " + measured + " does not say that UNPACK is faster here"
                     : "VERBENA_UNPACK is auto, and no tuning file says that UNPACK is faster here "
                       "(docs/tuning.md). To offer UNPACK anyway, set VERBENA_UNPACK=1"};
}

}  // namespace verbena::tools::info
