#include "verbs/address_handles.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "verbs/address_vector.h"
#include "verbs/device.h"
#include "verbs/library.h"

namespace verbena::verbs {
namespace {

using base::Error;
using base::Result;
using base::Status;

// For further paths: 32 paths to 256 peers, and no more than a sixteenth of the device's handles, so that the
// processes of a host that share a device leave handles for peers.
constexpr uint32_t kMaxSpareHandles = 8192, kSpareShare = 16;

std::array<uint8_t, kGidBytes> copy_gid(const ibv_gid& gid) {
  std::array<uint8_t, kGidBytes> copy;
  std::memcpy(copy.data(), gid.raw, kGidBytes);
  return copy;
}

}  // namespace

AddressHandle::Shared::~Shared() {
  owner.destroy(*this);
}

void AddressHandle::stop_sharing() const {
  if (shared_ != nullptr) shared_->owner.forget(shared_->route, shared_.get());
}

void AddressHandles::set_limit(int max_handles) {
  limit_ = max_handles > 0 ? static_cast<uint32_t>(max_handles) : UINT32_MAX;
}

uint32_t AddressHandles::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

bool AddressHandles::justifies(Purpose purpose) const {
  switch (purpose) {
    case Purpose::kFurtherPath:
      return count_ < std::min(kMaxSpareHandles, limit_ / kSpareShare);
    case Purpose::kPeer:
      return count_ + 1 < limit_;
    case Purpose::kAnswer:
      return count_ < limit_;
  }
  return false;
}

Result<AddressHandle> AddressHandles::take(const LocalAddress& local, const PortAddress& remote,
                                           int traffic_class, uint32_t flow_label, Purpose purpose) {
  const Library& library = device_.library();
  if (library.create_ah == nullptr || library.destroy_ah == nullptr)
    return Error{Status::kSystem, EOPNOTSUPP};
  AddressVector vector = make_address_vector(device_, local, remote, traffic_class, flow_label);
  const ibv_ah_attr& attributes = vector.attributes;
  const Route route{attributes.is_global,         attributes.dlid,           attributes.sl,
                    attributes.port_num,          attributes.grh.sgid_index, attributes.grh.hop_limit,
                    attributes.grh.traffic_class, attributes.grh.flow_label, copy_gid(attributes.grh.dgid)};
  AddressHandle result;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = known_.find(route); known != known_.end()) result.shared_ = known->second.lock();
    if (result) return result;
    if (!justifies(purpose)) {
      if (purpose == Purpose::kFurtherPath) return result;
      return Error{Status::kSystem, ENOSPC};
    }
    ++count_;
  }
  errno = 0;
  ibv_ah* const handle = library.create_ah(device_.domain(), &vector.attributes);
  if (handle == nullptr) {
    const int error = errno;
    const std::lock_guard lock(mutex_);
    --count_;
    if (error == ETIMEDOUT) return Error{Status::kRemote, ETIMEDOUT};
    if (purpose == Purpose::kFurtherPath) return result;
    return Error{Status::kSystem, error};
  }
  const auto made = std::make_shared<const AddressHandle::Shared>(*this, route, handle);
  const std::lock_guard lock(mutex_);  // released before `made`, which locks again if it is destroyed
  std::weak_ptr<const AddressHandle::Shared>& known = known_[route];
  result.shared_ = known.lock();  // of another thread, which was faster
  if (!result) {
    result.shared_ = made;
    known = made;
  }
  return result;
}

// The limit holds for all processes of the host together, so the device may refuse a handle earlier.
Error AddressHandles::explain(const Error& error, const PortAddress& remote) const {
  const int code = error.errno_value;
  const char* const remedy =
      code == ENOMEM || code == ENOSPC || code == EAGAIN
          ? " (the device has too many peers; set VERBENA_TRANSPORT=connected on all ranks, or distribute "
            "the processes of this host over more devices with VERBENA_HCA)"
      : code == EOPNOTSUPP ? " (set VERBENA_TRANSPORT=connected on all ranks)"
                           : "";
  if (limit_ == UINT32_MAX)
    return base::fail_errno(
        error.status, code, "device %s:%d: cannot create an address handle for gid %s, lid %u%s",
        device_.name().c_str(), device_.port_number(), format_gid(remote.gid).c_str(), remote.lid, remedy);
  return base::fail_errno(error.status, code,
                          "device %s:%d: cannot create an address handle for gid %s, lid %u (this process "
                          "uses %u of the device's %u address handles)%s",
                          device_.name().c_str(), device_.port_number(), format_gid(remote.gid).c_str(),
                          remote.lid, count(), limit_, remedy);
}

void AddressHandles::forget(const Route& route, const AddressHandle::Shared* expected) {
  std::shared_ptr<const AddressHandle::Shared> known;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto entry = known_.find(route);
  if (entry == known_.end()) return;
  known = entry->second.lock();
  if (known.get() == expected) known_.erase(entry);
}

// The entry of the route may belong to a newer handle.
void AddressHandles::destroy(const AddressHandle::Shared& shared) {
  {
    const std::lock_guard lock(mutex_);
    const auto entry = known_.find(shared.route);
    if (entry != known_.end() && entry->second.expired()) known_.erase(entry);
  }
  if (const int error = device_.library().destroy_ah(shared.handle); error != 0)
    base::log_warn("device %s:%d: an address handle cannot be destroyed (errno %d)", device_.name().c_str(),
                   device_.port_number(), error);
  const std::lock_guard lock(mutex_);
  --count_;
}

}  // namespace verbena::verbs
