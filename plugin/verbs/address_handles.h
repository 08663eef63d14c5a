// The address handles of a device, by which datagrams find a peer's port. Creating a handle may call the
// firmware, and devices limit their number (max_ah), so all peers with the same route share a handle. The
// last user destroys it. Any thread may call all functions.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "base/status.h"
#include "verbs/gid_choice.h"
#include "verbs/types.h"

struct ibv_ah;

namespace verbena::verbs {

class AddressHandles;
class Device;

// A share of a handle. Copies are further shares. Must be destroyed before the Device, and kept until the
// datagrams that name the handle were sent.
class AddressHandle {
 public:
  AddressHandle() = default;

  ibv_ah* get() const { return shared_ == nullptr ? nullptr : shared_->handle; }
  explicit operator bool() const { return shared_ != nullptr; }
  // Peers that are added later get another handle, because this one may have an old address of the peer's
  // port. Its present users keep it.
  void stop_sharing() const;

 private:
  friend class AddressHandles;
  // GRH or not, LID, service level, port, GID index, hop limit, traffic class, flow label, GID.
  using Route = std::tuple<uint8_t, uint16_t, uint8_t, uint8_t, uint8_t, uint8_t, uint8_t, uint32_t,
                           std::array<uint8_t, kGidBytes>>;
  struct Shared {
    Shared(AddressHandles& made_by, const Route& way, ibv_ah* made)
        : owner(made_by), route(way), handle(made) {}
    ~Shared();
    Shared(const Shared&) = delete;

    AddressHandles& owner;
    const Route route;
    ibv_ah* const handle;
  };

  std::shared_ptr<const Shared> shared_;
};

class AddressHandles {
 public:
  // The purpose of a handle that does not exist yet decides whether it is created.
  enum class Purpose : uint8_t {
    kFurtherPath,  // of a peer that can be reached without it: while few handles exist
    kPeer,         // while the device has more than one left
    kAnswer,       // short-lived, to tell a peer that it is refused: also the last one
  };

  explicit AddressHandles(Device& device) : device_(device) {}
  AddressHandles(const AddressHandles&) = delete;

  // Called once, before the first take(). `max_handles` is the device's limit for all processes together; 0
  // or less if unknown.
  void set_limit(int max_handles);

  // Returns a share of the handle of this route, and creates the handle if there is none. For `flow_label`
  // see make_address_vector(). The two ports must be compatible (route.h). Returns an empty handle if
  // kFurtherPath does not justify creating one. Errors are not logged: errno ETIMEDOUT means that the peer's
  // address does not answer yet; see explain() for others. May take milliseconds.
  base::Result<AddressHandle> take(const LocalAddress& local, const PortAddress& remote, int traffic_class,
                                   uint32_t flow_label, Purpose purpose);
  // Logs an error of take(), with its remedy, and returns it.
  base::Error explain(const base::Error& error, const PortAddress& remote) const;

  // Returns the number of handles that this process has on the device.
  uint32_t count() const;
  uint32_t limit() const { return limit_; }  // UINT32_MAX if unknown

 private:
  friend class AddressHandle;
  using Route = AddressHandle::Route;

  bool justifies(Purpose purpose) const;
  void forget(const Route& route, const AddressHandle::Shared* expected);
  void destroy(const AddressHandle::Shared& shared);

  Device& device_;
  uint32_t limit_ = UINT32_MAX;
  mutable std::mutex mutex_;  // guards the members below; not held while the device is called
  uint32_t count_ = 0;        // with those that are being created or destroyed
  std::map<Route, std::weak_ptr<const AddressHandle::Shared>> known_;
};

}  // namespace verbena::verbs
