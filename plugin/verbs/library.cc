#include "verbs/library.h"

#include <dlfcn.h>

namespace verbena::verbs {

std::shared_ptr<const Library> Library::open(const std::string& path, std::string* problem) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    *problem = dlerror();
    return nullptr;
  }
  std::shared_ptr<Library> library(new Library(path));
  const bool complete = library->resolve_all(handle, problem);
  dlclose(handle);  // RTLD_NODELETE keeps it mapped
  if (!complete) return nullptr;
  // Harmless where the kernel copies pinned pages on fork; elsewhere it must precede the first registration.
  if (library->fork_init != nullptr) library->fork_init();
  return library;
}

bool Library::resolve_all(void* handle, std::string* problem) {
  std::string missing;
#define VERBENA_RESOLVE(name) name = reinterpret_cast<decltype(name)>(dlsym(handle, "ibv_" #name));
#define VERBENA_REQUIRE(name) \
  VERBENA_RESOLVE(name)       \
  if (name == nullptr) missing += missing.empty() ? "ibv_" #name : ", ibv_" #name;
  VERBENA_REQUIRED_VERBS(VERBENA_REQUIRE)
  VERBENA_OPTIONAL_VERBS(VERBENA_RESOLVE)
#undef VERBENA_REQUIRE
#undef VERBENA_RESOLVE
  query_gid_ex = reinterpret_cast<decltype(query_gid_ex)>(dlsym(handle, "_ibv_query_gid_ex"));
  if (missing.empty()) return true;
  *problem = path_ + " lacks " + missing;
  return false;
}

bool Library::lists_devices() const {
  int count = 0;
  ibv_device** list = get_device_list(&count);
  if (list == nullptr) return false;
  free_device_list(list);
  return count > 0;
}

int Library::read_port(ibv_context* context, uint8_t port_number, ibv_port_attr* attributes) const {
  *attributes = {};
  verbs_context* extended = verbs_get_ctx_op(context, query_port);
  if (extended != nullptr) return extended->query_port(context, port_number, attributes, sizeof(*attributes));
  return query_port(context, port_number, reinterpret_cast<_compat_ibv_port_attr*>(attributes));
}

}  // namespace verbena::verbs
