// The verbs devices of this host, and the filter of VERBENA_HCA.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <span>

#include "base/movable.h"
#include "base/status.h"
#include "verbs/library.h"
#include "verbs/port_filter.h"

namespace verbena::verbs {

struct DiscoverySettings;

class DeviceList {
 public:
  // Returns an error, which is logged, if VERBENA_HCA is not a valid list of ports, there is no verbs
  // library, or the library cannot list its devices.
  static base::Result<DeviceList> read(const DiscoverySettings& settings);

  DeviceList(DeviceList&&) noexcept = default;
  ~DeviceList();

  const std::shared_ptr<const Library>& library() const { return library_; }
  const PortFilter& filter() const { return filter_; }
  // Valid while this list exists. An opened device may outlive the list.
  std::span<ibv_device* const> devices() const { return {list_.get(), static_cast<size_t>(count_.get())}; }

 private:
  DeviceList() = default;

  std::shared_ptr<const Library> library_;
  PortFilter filter_;
  base::Movable<ibv_device**> list_;
  base::Movable<int> count_;
};

}  // namespace verbena::verbs
