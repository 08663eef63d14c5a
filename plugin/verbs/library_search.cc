// Chooses the libibverbs to use.
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>

#include <string_view>
#include <vector>

#include "base/log.h"
#include "verbs/library.h"

namespace verbena::verbs {
namespace {

using base::Result;
using base::Status;

constexpr char kSystemLibrary[] = "libibverbs.so.1";
constexpr char kSoftverbs[] = "softverbs";
constexpr char kInstallHint[] =
    "install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, RHEL), or set "
    "VERBENA_IBVERBS_LIB to a path or to softverbs";

// Returns the folder of the shared library or program that contains this code, or an empty string.
std::string find_own_folder() {
  Dl_info info{};
  link_map* object = nullptr;
  const void* own_code = reinterpret_cast<const void*>(&find_own_folder);
  if (dladdr1(own_code, &info, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) == 0) return {};
  // The program itself has no name in the link map.
  const char* name = object->l_name[0] != '\0' ? object->l_name : "/proc/self/exe";
  char resolved[PATH_MAX];
  if (realpath(name, resolved) == nullptr) return {};
  const std::string path = resolved;
  return path.substr(0, path.rfind('/'));
}

// Returns the folder of the plugin or, for a program in bin/, the folder of libraries beside it. Works in a
// build tree and in an installation.
std::vector<std::string> list_softverbs_paths() {
  const std::string folder = find_own_folder();
  std::vector<std::string> paths{folder, folder + "/../lib"};
  if (std::string_view(VERBENA_LIBRARIES_FROM_TOOLS) != "../lib")
    paths.push_back(folder + "/" VERBENA_LIBRARIES_FROM_TOOLS);
  for (std::string& path : paths) path += "/softverbs/libibverbs.so.1";
  return paths;
}

std::shared_ptr<const Library> open_softverbs(std::string* problem) {
  for (const std::string& path : list_softverbs_paths()) {
    std::string why;
    if (auto library = Library::open(path, &why)) return library;
    *problem += (problem->empty() ? "" : "; ") + why;
  }
  return nullptr;
}

Result<std::shared_ptr<const Library>> load_default() {
  std::string system_problem, softverbs_problem;
  auto system = Library::open(kSystemLibrary, &system_problem);
  if (system != nullptr && system->lists_devices()) return system;
  if (auto softverbs = open_softverbs(&softverbs_problem)) {
    base::log_info("verbs library: %s: using %s",
                   system ? "the system's libibverbs lists no device" : system_problem.c_str(),
                   softverbs->path().c_str());
    return softverbs;
  }
  if (system != nullptr) {
    return base::fail(Status::kSystem,
                      "verbs library: %s lists no RDMA device, and softverbs was not found: %s. Check that "
                      "the NIC's driver is loaded (/sys/class/infiniband must show the NIC)",
                      kSystemLibrary, softverbs_problem.c_str());
  }
  return base::fail(Status::kSystem,
                    "verbs library: cannot use %s, and softverbs was not found: %s. To fix this, %s",
                    system_problem.c_str(), softverbs_problem.c_str(), kInstallHint);
}

}  // namespace

Result<std::shared_ptr<const Library>> Library::load(const std::string& choice) {
  if (choice.empty()) return load_default();
  // Opens the system's library first: a later dlopen of its name, for example by NCCL, returns the library
  // that was opened first under this name. Softverbs has the same name, and must not be returned instead of
  // the system's library.
  dlopen(kSystemLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  std::string problem;
  auto library = choice == kSoftverbs ? open_softverbs(&problem) : open(choice, &problem);
  if (library != nullptr) return library;
  return base::fail(Status::kSystem, "verbs library: cannot use VERBENA_IBVERBS_LIB %s: %s. To fix this, %s",
                    choice.c_str(), problem.c_str(), kInstallHint);
}

}  // namespace verbena::verbs
