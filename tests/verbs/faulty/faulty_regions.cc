// Registering and deregistering memory; which regions live.
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "abi/mlx5dv.h"
#include "target.h"

using namespace verbena::verbs::faulty;

namespace {

struct LiveRegion {
  const ibv_mr* region;
  uintptr_t begin, end;
};
std::mutex live_mutex;
std::vector<LiveRegion> live;

bool refuse_region(const ibv_pd* domain, const char* name, size_t length_bytes) {
  if (length_bytes == hooks().slow_length_bytes) {
    ++hooks().slow_calls;
    while (length_bytes == hooks().slow_length_bytes) usleep(1000);
  }
  if (refuse_on(domain->context, name)) return true;
  if (hooks().live_regions < hooks().most_regions) return false;
  errno = ENOMEM;
  return true;
}

ibv_mr* note_region(ibv_mr* region, uint64_t address, size_t length_bytes) {
  if (region == nullptr) return nullptr;
  ++hooks().live_objects;
  ++hooks().live_regions;
  ++hooks().made_regions;
  const std::lock_guard lock(live_mutex);
  live.push_back({region, address, address + length_bytes});
  return region;
}

ibv_mr* register_as_memory(ibv_pd* domain, size_t length_bytes, uint64_t iova, int access) {
  ibv_mr* const region = target().reg_mr_iova2(domain, reinterpret_cast<void*>(iova), length_bytes, iova,
                                               static_cast<unsigned>(access));
  return note_region(region, iova, length_bytes);
}

}  // namespace

bool verbena::verbs::faulty::reaches_region(const ibv_pd* domain, uint32_t remote_key, const void* address,
                                            size_t length_bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const std::lock_guard lock(live_mutex);
  return std::ranges::any_of(live, [&](const LiveRegion& entry) {
    return entry.region->pd == domain && entry.region->rkey == remote_key && entry.begin <= begin &&
           begin + length_bytes <= entry.end;
  });
}

extern "C" {

ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, size_t length_bytes, int access) {
  if (refuse_region(domain, "reg_mr", length_bytes)) return nullptr;
  return note_region(target().reg_mr(domain, address, length_bytes, access),
                     reinterpret_cast<uintptr_t>(address), length_bytes);
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, size_t length_bytes, uint64_t iova, unsigned access) {
  if (refuse_region(domain, "reg_mr", length_bytes)) return nullptr;
  return note_region(target().reg_mr_iova2(domain, address, length_bytes, iova, access), iova, length_bytes);
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, uint64_t offset, size_t length_bytes, uint64_t iova, int fd,
                          int access) {
  if (fd >= 0 && refuse_region(domain, "reg_dmabuf_mr", length_bytes)) return nullptr;
  if (fd >= 0 && hooks().takes_any_dmabuf) return register_as_memory(domain, length_bytes, iova, access);
  return note_region(target().reg_dmabuf_mr(domain, offset, length_bytes, iova, fd, access), iova,
                     length_bytes);
}

ibv_mr* mlx5dv_reg_dmabuf_mr(ibv_pd* domain, uint64_t, size_t length_bytes, uint64_t iova, int, int access,
                             int mlx5_access) {
  const bool is_known = mlx5_access == verbena::mlx5dv::MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT;
  if (!is_known || hooks().data_direct_path == nullptr || hooks().refuses_data_direct) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (refuse_region(domain, "mlx5dv_reg_dmabuf_mr", length_bytes)) return nullptr;
  ++hooks().data_direct_regions;
  return register_as_memory(domain, length_bytes, iova, access);
}

int ibv_dereg_mr(ibv_mr* region) {
  {
    const std::lock_guard lock(live_mutex);
    std::erase_if(live, [&](const LiveRegion& entry) { return entry.region == region; });
  }
  const int result = target().dereg_mr(region);
  if (result != 0) return result;
  --hooks().live_regions;
  --hooks().live_objects;
  return refuse("dereg_mr") ? errno : 0;
}

}  // extern "C"
