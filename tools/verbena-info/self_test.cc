#include "verbena-info/self_test.h"

#include <sys/utsname.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/parameters.h"
#include "common/cuda_driver.h"
#include "common/error.h"
#include "common/gpu.h"
#include "common/output.h"
#include "verbs/library.h"
#include "verbs/port_survey.h"
#include "verbs/self_test.h"

namespace verbena::tools::info {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPatienceNs = 1000 * base::kNsPerMs;
constexpr size_t kGpuBytes = 2 << 20;  // what CUDA aligns, and what a dma-buf begins with

Json list_forms(const verbs::SelfTestResult& result, verbs::Form first, verbs::Form end) {
  Json forms = Json::object();
  for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(end); ++i)
    forms[verbs::kFormNames[i]] = verbs::describe(result.forms[i]);
  return forms;
}

// As the plugin does: by dma-buf if device and driver have it, otherwise by pointer.
Json try_gpu(verbs::Device& device, const CudaDriver& driver, int index) {
  Json found{{"index", index}};
  try {
    Gpu gpu(driver, index);
    found["name"] = gpu.name();
    const CUdeviceptr start = gpu.allocate(kGpuBytes);
    int raw = -1;
    if (device.supports_dmabuf() && driver.cuMemGetHandleForAddressRange != nullptr)
      static_cast<void>(driver.cuMemGetHandleForAddressRange(&raw, start, kGpuBytes,
                                                             CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    {
      const base::FileDescriptor dmabuf(raw);
      const auto result = verbs::test_device(
          device,
          {.patience_ns = kPatienceNs, .gpu_memory = reinterpret_cast<void*>(start), .dmabuf = dmabuf.get()});
      found["by"] = raw >= 0 ? "dma-buf" : "pointer";
      found["forms"] = list_forms(result, verbs::Form::kGpuRegister, verbs::Form::kCount);
    }
    driver.check(driver.cuMemFree_v2(start), "cuMemFree");
  } catch (const std::exception& error) {
    found["problem"] = error.what();
  }
  return found;
}

Json try_device(verbs::Device& device, const verbs::SurveyedPort* port, int gpus, bool* is_usable) {
  Json found{{"device", device.name()}, {"port", device.port_number()}};
  if (port != nullptr) {
    found["vendor_id"] = port->vendor_id;
    found["part_id"] = port->part_id;
    found["firmware"] = port->firmware;
  }
  found["link_layer"] = device.address().link_layer == verbs::kEthernet ? "Ethernet" : "InfiniBand";
  found["speed_mbps"] = device.speed_mbps();
  found["bonded_ports"] = device.bonded_ports();
  found["max_message_bytes"] = device.max_message_bytes();
  found["dmabuf"] = device.supports_dmabuf();
  const auto result = verbs::test_device(device, {.patience_ns = kPatienceNs, .all_forms = true});
  const auto abilities = verbs::judge(result, device.untested_abilities());
  found["milliseconds"] = static_cast<double>(result.took_ns) / base::kNsPerMs;
  found["forms"] = list_forms(result, verbs::Form::kWrite, verbs::Form::kGpuRegister);
  found["usable"] = abilities.unusable.empty();
  if (!abilities.unusable.empty()) found["why_not"] = abilities.unusable;
  found["instead"] = abilities.advice;
  *is_usable = abilities.unusable.empty();
  std::string why;
  const CudaDriver* const driver = gpus != 0 ? load_cuda_driver(why) : nullptr;
  found["gpus"] = Json::array();
  for (int index = 0; index < gpus && driver != nullptr; ++index)
    found["gpus"].push_back(try_gpu(device, *driver, index));
  return found;
}

const verbs::SurveyedPort* find_port(const base::Result<verbs::Survey>& survey, const verbs::Device& device) {
  if (!survey) return nullptr;
  const auto& ports = (*survey).ports;
  const auto found = std::ranges::find_if(ports, [&](const verbs::SurveyedPort& port) {
    return port.device == device.name() && port.port_number == device.port_number();
  });
  return found == ports.end() ? nullptr : &*found;
}

}  // namespace

int run_self_tests() {
  const base::QuietLog quiet;  // the line says everything
  if (!base::load_parameters()) throw ToolError(base::last_failure());
  const auto settings = verbs::read_discovery_settings(base::parameters().hca);
  if (!settings) throw ToolError(base::last_failure());
  const auto survey = verbs::survey_ports(*settings);
  const auto devices = verbs::discover_devices(*settings);
  std::string why;
  const int gpus = count_cuda_devices(why);
  utsname names{};
  uname(&names);
  Json line{{"verbena_self_test", 1}, {"version", VERBENA_RELEASE}, {"kernel", names.release}};
  line["architecture"] = names.machine;
  line["verbs_library"] = survey ? (*survey).library_path : std::string();
  line["devices"] = Json::array();
  bool are_all_usable = true;
  for (size_t i = 0; devices && i < devices->size(); ++i) {
    const auto& device = (*devices)[i];
    bool is_usable = false;
    line["devices"].push_back(try_device(*device, find_port(survey, *device), gpus, &is_usable));
    are_all_usable &= is_usable;
  }
  if (!devices) line["problem"] = base::last_failure();
  write_text("-", line.dump() + "\n");
  if (!devices) return kExitNoDevice;
  return are_all_usable ? kExitOk : kExitFailed;
}

}  // namespace verbena::tools::info
