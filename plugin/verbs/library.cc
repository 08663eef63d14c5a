#include "verbs/library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace verbena::verbs {
namespace {

// Returns the path where the loader found the library, because a name without a folder does not identify the
// file.
std::string find_path(void* handle, const std::string& asked) {
  const link_map* map = nullptr;
  const bool is_known = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
  return is_known ? map->l_name : asked;
}

}  // namespace

std::shared_ptr<const Library> Library::open(const std::string& path, std::string* problem) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    *problem = dlerror();
    return nullptr;
  }
  std::shared_ptr<Library> library(new Library(find_path(handle, path)));
  const bool complete = library->resolve_all(handle, problem);
  dlclose(handle);  // the library stays mapped because of RTLD_NODELETE
  if (!complete) return nullptr;
  // Has no effect if the kernel copies pinned pages on fork. On other kernels it must be called before the
  // first registration.
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
  take_memory = reinterpret_cast<decltype(take_memory)>(dlsym(handle, "softverbs_take_memory"));
  give_back_memory =
      reinterpret_cast<decltype(give_back_memory)>(dlsym(handle, "softverbs_give_back_memory"));
  explain_no_gpu = reinterpret_cast<decltype(explain_no_gpu)>(dlsym(handle, "softverbs_explain_no_gpu"));
  explain_wait = reinterpret_cast<decltype(explain_wait)>(dlsym(handle, "softverbs_explain_wait"));
  query_port_speed = reinterpret_cast<decltype(query_port_speed)>(dlsym(handle, "ibv_query_port_speed"));
  query_gid_ex = reinterpret_cast<decltype(query_gid_ex)>(dlsym(handle, "_ibv_query_gid_ex"));
  if (missing.empty()) return true;
  *problem = path_ + " lacks " + missing;
  return false;
}

const char* Library::advise_on_open(int error) const {
  if (error == EMFILE || error == ENFILE) return "check the limit of open files (ulimit -n)";
  if (error == ENOMEM) return "check the limits of memory (ulimit -v and -l, the cgroup's memory.max)";
  if (is_softverbs()) return "the line of softverbs on stderr names the cause";
  return "check that this user may use /dev/infiniband";
}

bool Library::lists_devices() const {
  int count = 0;
  ibv_device** list = get_device_list(&count);
  if (list == nullptr) return false;
  free_device_list(list);
  return count > 0;
}

int Library::read_port(ibv_context* context, uint8_t port_number, ibv_port_attr* attributes,
                       uint32_t* speed_code) const {
  // The offset of active_speed_ex, which is missing in older headers. A library fills the fields that it
  // knows and sets the others to 0.
  constexpr size_t kSpeedOffset = 52;
  constexpr size_t kRoomBytes = std::max(sizeof(ibv_port_attr), kSpeedOffset + sizeof(uint32_t));
  static_assert(offsetof(ibv_port_attr, port_cap_flags2) + sizeof(uint32_t) == kSpeedOffset);
  alignas(ibv_port_attr) std::array<std::byte, kRoomBytes> room{};
  auto* all = reinterpret_cast<ibv_port_attr*>(room.data());
  verbs_context* extended = verbs_get_ctx_op(context, query_port);
  const int error = extended != nullptr
                        ? extended->query_port(context, port_number, all, room.size())
                        : query_port(context, port_number, reinterpret_cast<_compat_ibv_port_attr*>(all));
  std::memcpy(attributes, room.data(), sizeof(*attributes));
  if (speed_code == nullptr) return error;
  std::memcpy(speed_code, room.data() + kSpeedOffset, sizeof(*speed_code));
  if (*speed_code == 0) *speed_code = attributes->active_speed;
  return error;
}

}  // namespace verbena::verbs
