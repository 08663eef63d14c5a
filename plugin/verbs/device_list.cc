#include "verbs/device_list.h"

#include <cerrno>

#include "base/log.h"
#include "verbs/device_opener.h"

namespace verbena::verbs {

using base::Status;

base::Result<DeviceList> DeviceList::read(const DiscoverySettings& settings) {
  DeviceList read;
  std::string problem;
  if (!PortFilter::parse(settings.hca, &read.filter_, &problem)) {
    return base::fail(Status::kInvalidUsage, "devices: VERBENA_HCA %s: %s", settings.hca.c_str(),
                      problem.c_str());
  }
  auto library = Library::load(settings.library_choice);
  if (!library) return library.error();
  read.library_ = *library;
  read.list_ = read.library_->get_device_list(&read.count_.get());
  if (read.list_ == nullptr) {
    return base::fail_errno(Status::kSystem, errno, "devices: %s cannot list the RDMA devices",
                            read.library_->path().c_str());
  }
  return read;
}

DeviceList::~DeviceList() {
  if (list_ != nullptr) library_->free_device_list(list_);
}

}  // namespace verbena::verbs
