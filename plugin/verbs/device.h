// One usable port of one RDMA device: its open context and protection domain, shared by everything in the
// process.
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
  // A bond sends each queue pair over one of its ports.
  uint32_t bonded_ports() const { return bonded_ports_; }
  PortPlace place() const { return place_; }  // as VERBENA_HCA says
  // Of a datagram with its header where no MTU bounds it, as on softverbs; 0: the port's MTU does.
  uint32_t long_datagram_bytes() const { return is_softverbs_ ? (128U << 10) + 24 : 0; }
  bool is_software() const { return is_software_; }  // softverbs or a kernel software device (rxe)
  bool is_softverbs() const { return is_softverbs_; }
  // Whether a receive work request without an SGE is known to work. libmlx5 ends the SGE list there; bnxt_re
  // builds a wrong entry in a shared receive queue, and other providers refuse the request.
  bool takes_empty_receives() const { return is_software_ || mlx5_ != nullptr; }
  // The abilities to assume before any test: what the device and its provider advertise.
  Abilities untested_abilities() const;
  // Whether pages of receives may be in memory of a GPU. libmlx5 copies short messages with the CPU that
  // polls, unless a queue pair is made by its own call.
  bool receives_to_gpu() const { return !is_mlx5_ || (mlx5_ != nullptr && mlx5_makes_pairs_); }
  // The abilities that the self-test found (self_test.h). The first call runs the test, which takes a few
  // milliseconds, unless VERBENA_SELF_TEST is off.
  const Abilities& abilities();
  // Whether writes of a queue pair take effect in the order posted. A NIC does not say: with adaptive routing
  // its firmware may place them out of order, and ibv_query_qp_data_in_order() is about the bytes of one
  // write.
  bool keeps_write_order() const { return is_software_; }
  const std::string& sysfs_path() const {
    return sysfs_path_;
  }  // /sys/class/infiniband/<name>/device resolved; may be empty
  // The address as last read.
  LocalAddress local_address() const;
  PortAddress address() const { return local_address().port; }
  int gid_index() const { return local_address().gid_index; }  // -1 on InfiniBand without GRH
  // For a new connection: reads the address again if it may have changed (an event said so, or the GID is no
  // longer at its index). If the device has failed, or the port is down or has lost its last GID, the
  // link_layer is 0; a line says so.
  LocalAddress refresh_address();
  // Fails if a GID of `known` is no longer in the port's table; the error names the GID and its index. Not if
  // the device has failed: connecting its queue pairs fails.
  base::Outcome confirm_address(const LocalAddress& known) const;

  // Whether the entry at `index` of the GID table is still this GID. Asks the device.
  bool has_gid(int index, const uint8_t* gid) const;

  uint32_t max_srq_entries() const { return max_srq_entries_; }  // 0: it has no shared receive queues
  uint32_t max_qp_entries() const { return max_qp_entries_; }
  uint32_t max_cq_entries() const { return max_cq_entries_; }
  uint64_t max_message_bytes() const { return max_message_bytes_; }
  // How many reads and atomics a queue pair may have under way, in either direction; at least 1.
  uint32_t max_outstanding_reads() const { return max_outstanding_reads_; }
  // See tells_carried_out() of queues.h; tried once.
  bool tells_carried_out();
  // 64-bit fetch-and-add, atomic among all operations of this device: as the device says, and as it was seen.
  bool offers_atomics() const { return offers_atomics_; }
  bool supports_atomics() const { return supports_atomics_.load(std::memory_order_relaxed); }
  // Returns the device's own explanation of requests that do not end: softverbs names a call with GPU memory
  // that does not return. Empty if the device has none.
  std::string explain_wait() const;
  // Which kinds of GPU memory can be registered. Found by trying: a dma-buf with fd -1 gives EBADF if it is
  // supported; peermem is recognised by its module; softverbs registers CUDA pointers itself, and says if it
  // cannot.
  bool supports_dmabuf() const { return supports_dmabuf_; }
  bool supports_gpu_pointers() const { return supports_gpu_pointers_; }
  // In sysfs, the PCI function that reaches the memory of GPUs in this one's place (Data Direct); empty:
  // none, or VERBENA_DATA_DIRECT is off. For dma-bufs that are mapped for PCIe, as NCCL exports them.
  const std::string& data_direct_path() const { return data_direct_path_; }
  // Receives outstanding at most on a queue pair that takes messages out of order; 0: the device has no such,
  // or VERBENA_OOO_RQ is off.
  uint32_t max_out_of_order_receives() const { return max_out_of_order_receives_; }

  // False after the port went down or the device failed; set by the async event thread. Relaxed atomic
  // inside.
  bool is_healthy() const;
  // Whether the device has failed for good (DEVICE_FATAL) or is gone: nothing more can be created on it. For
  // slow paths.
  bool has_failed() const;
  // Whether a queue pair that failed may be replaced now: a write of no bytes tries the new one.
  bool may_replace_pairs();
  AsyncEvents& events() const { return *events_; }
  // Registrations of callers' memory; shared by everything that uses this port.
  RegionCache& regions() const { return *regions_; }

  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  const Library& library() const { return *library_; }
  const Mlx5* mlx5() const { return mlx5_.get(); }  // null: the device is another maker's

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
};

// Opens every active port that VERBENA_HCA (alias NCCL_IB_HCA) selects: from the system's libibverbs if that
// finds any device, otherwise from the embedded softverbs beside the plugin (VERBENA_IBVERBS_LIB overrides).
// Ordered by PCI path, then name. An error, logged once, if the library is missing, there is no device, or
// the filter matches none (the line then lists what there is). Not thread safe; the net core calls it under
// its own mutex, once per first init.
base::Result<std::vector<std::unique_ptr<Device>>> discover_devices();
// The same with `hca` instead of VERBENA_HCA.
base::Result<std::vector<std::unique_ptr<Device>>> discover_selected_devices(const std::string& hca);

}  // namespace verbena::verbs
