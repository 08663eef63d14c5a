// What NVIDIA's driver library has beside verbs, but for registrations (faulty_regions.cc). The plugin finds
// it here, as these devices' contexts run this library's code.
#include <cstring>

#include "abi/mlx5dv.h"
#include "target.h"

using namespace verbena::verbs::faulty;

extern "C" int mlx5dv_get_data_direct_sysfs_path(ibv_context*, char* buf, size_t buf_len) {
  const char* const path = hooks().data_direct_path;
  if (path == nullptr) return ENODEV;
  if (std::strlen(path) >= buf_len) return ENOSPC;
  std::strcpy(buf, path);
  return 0;
}
