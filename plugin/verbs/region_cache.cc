#include "verbs/region_cache.h"

#include <utility>

#include "base/log.h"

namespace verbena::verbs {

// Each use holds a shared pointer. The destructor of `region` deregisters.
struct SharedRegion {
  enum class State : uint8_t { kPending, kReady, kFailed };
  State state = State::kPending;
  MemoryRegion region;  // valid once ready
};

// A request that has not been released.
struct RegionUse : IntervalNode {
  MemoryKind kind;
  Access access;
  MemoryIdentity identity;
  std::shared_ptr<SharedRegion> shared;
};

namespace {

// Returns whether a request whose range `held` covers may share its region.
bool may_share(const RegionUse& held, const RegionRequest& request, const Interval& interval) {
  if (held.kind != request.kind || held.access != request.access) return false;
  if (held.kind == MemoryKind::kHost) return true;
  if (held.identity.name != request.identity.name) return false;
  const bool is_same_range = held.interval == interval;
  // The address of a registered pointer still means the same memory. For a dma-buf, the address is only a
  // value that the caller passes.
  if (!held.identity.is_known()) return held.kind == MemoryKind::kGpuPointer && is_same_range;
  return is_same_range || held.identity.is_one_allocation;
}

// Tries a dma-buf first, through Data Direct if requested; memory that is not mapped for Data Direct may
// still be registered without it. If the device rejects both, tries the address, which needs a peer memory
// module. Must not throw, because other threads may be waiting for the result.
base::Result<MemoryRegion> register_region(Device& device, const RegionRequest& request) {
  const auto by_address = [&] {
    return MemoryRegion::register_memory(device, request.address, request.length_bytes, request.access);
  };
  if (request.kind != MemoryKind::kDmabuf) return by_address();
  const auto by_dmabuf = [&](const Access& access) {
    return MemoryRegion::register_dmabuf(device, request.address, request.length_bytes, request.offset_bytes,
                                         request.fd, access);
  };
  auto region = by_dmabuf(request.access);
  if (!region && request.access.data_direct) {
    Access ordinary = request.access;
    ordinary.data_direct = false;
    region = by_dmabuf(ordinary);
  }
  if (region || !device.supports_gpu_pointers()) return region;
  region = by_address();
  if (region) {
    base::log_info("device %s:%d rejected a dma-buf, so the plugin registered the memory by its address",
                   device.name().c_str(), device.port_number());
  }
  return region;
}

}  // namespace

base::Result<RegionLease> RegionCache::take(const RegionRequest& request) {
  const auto begin = reinterpret_cast<uintptr_t>(request.address);
  const Interval interval{begin, begin + request.length_bytes};
  if (interval.end <= interval.begin) {
    return base::fail(base::Status::kInvalidArgument,
                      "device %s:%d: cannot register memory, because the address range is invalid (address "
                      "%p, length %zu bytes)",
                      device_.name().c_str(), device_.port_number(), request.address, request.length_bytes);
  }
  Lock lock(mutex_);
  for (;;) {
    auto use = std::make_unique<RegionUse>();
    use->interval = interval;
    use->kind = request.kind;
    use->access = request.access;
    use->identity = request.identity;
    const RegionUse* held = find_shareable(request, interval);
    use->shared = held != nullptr ? held->shared : std::make_shared<SharedRegion>();
    const std::shared_ptr<SharedRegion> shared = use->shared;
    RegionLease lease = add_use(use.release());
    if (held == nullptr) return register_new(std::move(lease), request, lock);
    settled_.wait(lock, [&] { return shared->state != SharedRegion::State::kPending; });
    if (shared->state == SharedRegion::State::kReady) {
      lease.local_key_ = shared->region.local_key();
      lease.remote_key_ = shared->region.remote_key();
      return lease;
    }
    // The larger range could not be registered. This request's own range may still work, and an error must
    // name this range.
    lock.unlock();
    lease = {};
    lock.lock();
  }
}

RegionUse* RegionCache::find_shareable(const RegionRequest& request, const Interval& interval) const {
  return static_cast<RegionUse*>(uses_.find_covering(interval, [&](const IntervalNode& node) {
    const auto& held = static_cast<const RegionUse&>(node);
    return held.shared->state != SharedRegion::State::kFailed && may_share(held, request, interval);
  }));
}

RegionLease RegionCache::add_use(RegionUse* use) {
  uses_.insert(use);
  RegionLease lease;
  lease.use_ = {use, RegionReturner{this}};
  return lease;
}

base::Result<RegionLease> RegionCache::register_new(RegionLease lease, const RegionRequest& request,
                                                    Lock& lock) {
  SharedRegion& shared = *lease.use_->shared;
  lock.unlock();
  auto region = register_region(device_, request);
  lock.lock();
  shared.state = region ? SharedRegion::State::kReady : SharedRegion::State::kFailed;
  if (region) {
    lease.local_key_ = region->local_key();
    lease.remote_key_ = region->remote_key();
    shared.region = std::move(*region);
  }
  lock.unlock();
  settled_.notify_all();
  if (!region) return region.error();
  return lease;
}

void RegionCache::release(RegionUse* use) {
  // Destroyed after the lock is released; frees the region if this was its last use.
  const std::unique_ptr<RegionUse> gone(use);
  const std::lock_guard lock(mutex_);
  uses_.remove(use);
}

void RegionReturner::operator()(RegionUse* use) const {
  cache->release(use);
}

}  // namespace verbena::verbs
