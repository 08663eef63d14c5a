#include "softverbs/copier/area.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace verbena::softverbs::copier {

uint32_t AreaTable::add(std::unique_ptr<Area> area) {
  // Numbers are reused as late as possible, so that a copy that names a former area is rejected.
  for (uint32_t tried = 1; tried < kAreaCount; ++tried) {
    latest_ = latest_ + 1 < kAreaCount ? latest_ + 1 : 1;
    if (areas_[latest_].load(std::memory_order_relaxed) != nullptr) continue;
    put(latest_, std::move(area));
    return latest_;
  }
  return 0;
}

void AreaTable::put(uint32_t number, std::unique_ptr<Area> area) {
  areas_[number].store(area.release(), std::memory_order_release);
}

std::unique_ptr<Area> AreaTable::remove(uint32_t number) {
  return std::unique_ptr<Area>(number < kAreaCount ? areas_[number].exchange(nullptr) : nullptr);
}

bool map_host(int descriptor, uint64_t bytes, Area& area, std::string& why) {
  // Checked, because an access beyond the end of a file that was shortened would kill this process.
  struct stat status {};
  const bool is_whole = fstat(descriptor, &status) == 0 && static_cast<uint64_t>(status.st_size) >= bytes;
  void* const base =
      is_whole ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0)
               : MAP_FAILED;
  if (base == MAP_FAILED) {
    why = std::string("cannot map shared memory: ") + strerror(is_whole ? errno : EINVAL);
    return false;
  }
  madvise(base, bytes, MADV_DONTDUMP);
  area.base = reinterpret_cast<uint64_t>(base);
  area.bytes = bytes;
  return true;
}

bool map_ipc(const Driver& driver, const CUipcMemHandle& handle, uint64_t bytes, Area& area,
             std::string& why) {
  CUdeviceptr base = 0;
  const CUresult result = driver.cuIpcOpenMemHandle_v2(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result != CUDA_SUCCESS) {
    why = driver.explain("cuIpcOpenMemHandle", result);
    return false;
  }
  area.base = base;
  area.bytes = bytes;
  area.is_ipc = true;
  return true;
}

bool reserve(const Driver& driver, uint64_t bytes, Area& area, std::string& why) {
  if (driver.cuMemImportFromShareableHandle == nullptr) {
    why = "the CUDA driver has no virtual memory management";
    return false;
  }
  CUdeviceptr base = 0;
  const CUresult result = driver.cuMemAddressReserve(&base, bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) {
    why = driver.explain("cuMemAddressReserve", result);
    return false;
  }
  area.base = base;
  area.bytes = bytes;
  return true;
}

bool map_part(const Driver& driver, CUdevice device, int descriptor, uint64_t offset, uint64_t bytes,
              Area& area, std::string& why) {
  if (offset > area.bytes || bytes > area.bytes - offset) {
    why = "a part of the memory lies outside the registered area";
    return false;
  }
  CUmemGenericAllocationHandle handle = 0;
  void* const name = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  CUresult result =
      driver.cuMemImportFromShareableHandle(&handle, name, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) {
    why = driver.explain("cuMemImportFromShareableHandle", result);
    return false;
  }
  const CUdeviceptr at = area.base + offset;
  const char* call = "cuMemMap";
  result = driver.cuMemMap(at, bytes, 0, handle, 0);
  driver.cuMemRelease(handle);  // the mapping keeps the memory alive
  if (result == CUDA_SUCCESS) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    call = "cuMemSetAccess";
    result = driver.cuMemSetAccess(at, bytes, &access, 1);
    if (result != CUDA_SUCCESS) driver.cuMemUnmap(at, bytes);
  }
  if (result != CUDA_SUCCESS) {
    why = driver.explain(call, result);
    return false;
  }
  area.parts.emplace_back(offset, bytes);
  return true;
}

void unmap(const Driver& driver, Area& area) {
  if (area.base == 0) return;
  if (area.is_host()) {
    for (const uint64_t pin : area.pins) driver.cuMemHostUnregister(reinterpret_cast<void*>(pin));
    munmap(reinterpret_cast<void*>(area.base), area.bytes);
  } else if (area.is_ipc) {
    driver.cuIpcCloseMemHandle(area.base);
  } else {
    for (const auto& [offset, bytes] : area.parts) driver.cuMemUnmap(area.base + offset, bytes);
    driver.cuMemAddressFree(area.base, area.bytes);
  }
}

}  // namespace verbena::softverbs::copier
