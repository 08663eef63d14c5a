#include "nccl/loaded_plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace verbena::nccl::testing {

namespace {

size_t count_entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

LoadedPlugin::LoadedPlugin() : library_(dlopen(path(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) problem_ = dlerror();
}

LoadedPlugin::~LoadedPlugin() {
  if (library_ != nullptr) dlclose(library_);
}

const void* LoadedPlugin::find_symbol(const std::string& name) const {
  return library_ == nullptr ? nullptr : dlsym(library_, name.c_str());
}

const char* LoadedPlugin::path() {
  return VERBENA_PLUGIN_PATH;
}

bool LoadedPlugin::is_in_memory() {
  void* const library = dlopen(path(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return false;
  dlclose(library);
  return true;
}

size_t count_open_files() {
  return count_entries("/proc/self/fd");
}
size_t count_threads() {
  return count_entries("/proc/self/task");
}
size_t count_own_threads() {
  size_t count = 0;
  std::error_code ended;  // a thread may end meanwhile
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ended)) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.rfind("verbena-", 0) == 0) ++count;
  }
  return count;
}

}  // namespace verbena::nccl::testing
