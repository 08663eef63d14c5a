#include "verbena-perf/verbs_choice.h"

#include <filesystem>
#include <system_error>

namespace verbena::tools::perf {
namespace {

constexpr const char* kKernelDevices = "/sys/class/infiniband";
constexpr const char* kSoftverbs = "softverbs";

bool has_kernel_devices() {
  std::error_code error;
  return std::filesystem::directory_iterator(kKernelDevices, error) != std::filesystem::directory_iterator();
}

}  // namespace

void choose_same_verbs(Environment& environment, const std::string& plugin) {
  const std::string* const chosen = environment.find("VERBENA_IBVERBS_LIB");
  const bool is_default = chosen == nullptr || chosen->empty();
  if (is_default && has_kernel_devices()) return;
  std::filesystem::path folder;
  if (is_default || *chosen == kSoftverbs) {
    folder = std::filesystem::path(plugin).parent_path() / kSoftverbs;
  } else {
    folder = std::filesystem::path(*chosen).parent_path();
  }
  if (folder.empty()) return;
  const std::string* const before = environment.find("LD_LIBRARY_PATH");
  environment.set("LD_LIBRARY_PATH", before == nullptr ? folder.string() : folder.string() + ":" + *before);
}

}  // namespace verbena::tools::perf
