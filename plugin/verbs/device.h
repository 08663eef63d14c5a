// One usable port of one RDMA device, with its context and protection domain. All parts of the process share
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/types.h"

struct ibv_context;
struct ibv_pd;

namespace verbena::verbs {

class AddressHandles;
class AddressReader;
class AsyncEvents;
class Library;
class Mlx5;
class RegionCache;
struct Abilities;

class Device {
 public:
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }    // the verbs device's own name, e.g. mlx5_0
  int port_number() const { return port_number_; }     // 1..
  uint64_t guid() const { return guid_; }              // host byte order
  uint32_t speed_mbps() const { return speed_mbps_; }  // of all ports of a bond
  // A bond sends the packets of each queue pair over one of its ports.
  uint32_t bonded_ports() const { return bonded_ports_; }
  PortPlace place() const { return place_; }  // from VERBENA_HCA
  // The maximum length of a datagram with its header, on a device without the limit of an MTU (softverbs); 0
  // if the port's MTU is the limit.
  uint32_t long_datagram_bytes() const { return is_softverbs_ ? (128U << 10) + 24 : 0; }
  bool is_software() const { return is_software_; }  // softverbs or a kernel software device (rxe)
  bool is_softverbs() const { return is_softverbs_; }
  // Returns whether a receive without an SGE is known to work. libmlx5 ends the SGE list correctly. bnxt_re
  // builds a wrong entry in a shared receive queue, and other providers reject the request.
  bool takes_empty_receives() const { return is_software_ || mlx5_ != nullptr; }
  // Returns the abilities to assume before a test: those that the device and its provider advertise.
  Abilities untested_abilities() const;
  // Returns whether pages of receives may be in GPU memory. libmlx5 copies short messages with the CPU that
  // polls, unless the queue pair is created by libmlx5's own function.
  bool receives_to_gpu() const { return !is_mlx5_ || (mlx5_ != nullptr && mlx5_makes_pairs_); }
  // Returns the abilities that the self-test found (self_test.h). The first call runs the test, which takes a
  // few milliseconds, unless VERBENA_SELF_TEST is off.
  const Abilities& abilities();
  // Returns whether writes of a queue pair take effect in the order in which they were posted. A NIC does not
  // report this: with adaptive routing its firmware may place writes out of order, and
  // ibv_query_qp_data_in_order() only concerns the bytes of one write.
  bool keeps_write_order() const { return is_software_; }
  const std::string& sysfs_path() const {
    return sysfs_path_;
  }  // /sys/class/infiniband/<name>/device resolved; may be empty
  // Returns the address as it was last read.
  LocalAddress local_address() const;
  PortAddress address() const { return local_address().port; }
  int gid_index() const { return local_address().gid_index; }  // -1 on InfiniBand without GRH
  // Returns the address for a new connection. Reads it again if it may have changed (an event was reported,
  // or the GID is no longer at its index). If the device has failed, the port is down, or its last GID is
  // gone, the link_layer of the result is 0, and the reason is logged.
  LocalAddress refresh_address();
  // Returns an error if a GID of `known` is no longer in the port's table; the error names the GID and its
  // index. Returns no error if the device has failed, because connecting its queue pairs fails anyway.
  base::Outcome confirm_address(const LocalAddress& known) const;

  // Returns whether the entry at `index` of the GID table is still this GID. Queries the device.
  bool has_gid(int index, const uint8_t* gid) const;

  uint32_t max_srq_entries() const { return max_srq_entries_; }  // 0: no shared receive queues
  uint32_t max_qp_entries() const { return max_qp_entries_; }
  uint32_t max_cq_entries() const { return max_cq_entries_; }
  uint64_t max_message_bytes() const { return max_message_bytes_; }
  // Returns the maximum number of outstanding reads and atomics of a queue pair, in either direction; at
  // least 1.
  uint32_t max_outstanding_reads() const { return max_outstanding_reads_; }
  // See tells_carried_out() of queues.h. The test runs only once.
  bool tells_carried_out();
  // Returns whether the device has a 64-bit fetch-and-add that is atomic among all operations of this device,
  // as the device reports and the self-test has confirmed.
  bool offers_atomics() const { return offers_atomics_; }
  bool supports_atomics() const { return supports_atomics_.load(std::memory_order_relaxed); }
  // Returns the device's own explanation of requests that do not complete, or an empty string. Softverbs
  // names a call on GPU memory that does not return.
  std::string explain_wait() const;
  // Which kinds of GPU memory can be registered. This is determined by trying: for a dma-buf, a registration
  // with fd -1 returns EBADF if dma-bufs are supported; peer memory is recognised by its kernel module;
  // softverbs registers CUDA pointers itself, and reports if it cannot.
  bool supports_dmabuf() const { return supports_dmabuf_; }
  bool supports_gpu_pointers() const { return supports_gpu_pointers_; }
  // The path in sysfs of the PCI function that accesses GPU memory instead of the device's own function (Data
  // Direct). Empty if there is none, or VERBENA_DATA_DIRECT is off. For dma-bufs that are mapped for PCIe, as
  // NCCL exports them.
  const std::string& data_direct_path() const { return data_direct_path_; }
  // Returns the maximum number of outstanding receives of a queue pair that receives messages out of order; 0
  // if the device does not support this, or VERBENA_OOO_RQ is off.
  uint32_t max_out_of_order_receives() const { return max_out_of_order_receives_; }

  // Returns false after the port went down or the device failed. The event thread sets the flag (a relaxed
  // atomic).
  bool is_healthy() const;
  // Returns whether the device has failed for good (DEVICE_FATAL) or is gone, so that no object can be
  // created on it. For slow paths.
  bool has_failed() const;
  // Returns whether a failed queue pair may be replaced now. A write of no bytes tests the new queue pair.
  bool may_replace_pairs();
  AsyncEvents& events() const { return *events_; }
  // Registrations of callers' memory, shared by all users of this port.
  RegionCache& regions() const { return *regions_; }
  // The address handles of datagrams, shared by all users of this port.
  AddressHandles& address_handles() const { return *address_handles_; }

  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  const Library& library() const { return *library_; }
  const Mlx5* mlx5() const { return mlx5_.get(); }  // null for a device of another vendor

 private:
  friend class DeviceOpener;
  friend class AsyncEvents;
  Device();
  void store_address(const LocalAddress& address);

  std::shared_ptr<const Library> library_;
  std::unique_ptr<const Mlx5> mlx5_;
  std::string name_, sysfs_path_, data_direct_path_;
  int port_number_ = 1;
  PortPlace place_;
  uint64_t guid_ = 0;
  uint32_t bonded_ports_ = 1;
  uint32_t speed_mbps_ = 0, max_srq_entries_ = 0, max_qp_entries_ = 0, max_cq_entries_ = 0;
  uint64_t max_message_bytes_ = 0;
  uint32_t max_outstanding_reads_ = 1, max_out_of_order_receives_ = 0;
  bool offers_atomics_ = false, is_mlx5_ = false, mlx5_makes_pairs_ = false;
  std::atomic<bool> supports_atomics_{false};
  bool is_software_ = false, is_softverbs_ = false, supports_dmabuf_ = false, supports_gpu_pointers_ = false;
  std::once_flag is_carried_out_tried_, is_tested_;
  std::unique_ptr<const Abilities> abilities_;
  bool tells_carried_out_ = false;
  mutable std::mutex address_mutex_;  // guards address_
  LocalAddress address_;
  std::unique_ptr<AddressReader> address_reader_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  std::unique_ptr<AsyncEvents> events_;
  std::unique_ptr<RegionCache> regions_;
  std::unique_ptr<AddressHandles> address_handles_;
};

// Opens every active port that VERBENA_HCA (alias NCCL_IB_HCA) selects. Uses the system's libibverbs if it
// finds any device, otherwise the softverbs library beside the plugin (VERBENA_IBVERBS_LIB overrides this).
// Sorts the ports by PCI path, then by name. Returns an error, logged once, if the library is missing, there
// is no device, or the filter matches no port (the log line then lists the ports). Not thread safe: the net
// core calls it under its own mutex, once in the first init.
base::Result<std::vector<std::unique_ptr<Device>>> discover_devices();
// Like discover_devices(), with `hca` instead of VERBENA_HCA.
base::Result<std::vector<std::unique_ptr<Device>>> discover_selected_devices(const std::string& hca);

}  // namespace verbena::verbs
