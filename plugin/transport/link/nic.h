// What NCCL calls a net device: one port, or several joined into a virtual device. Its ports are the rails of
// every connection opened on it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/device.h"

namespace verbena::transport {

struct Nic {
  std::string
      name;  // unlike any verbs device's own name, so that NCCL's built-in transport never shares its node
  // Of its card: functions of one card, virtual ones too, count as one; or of its Data Direct function.
  // Empty: none.
  std::string pci_path;
  int port = 1;  // tells the ports of one card apart, across its functions
  std::vector<verbs::Device*> rails;
  std::vector<int> members;  // indices of the physical devices it is made of
  uint64_t guid = 0;
  uint32_t speed_mbps = 0;  // of all rails together
  verbs::PortPlace place;   // what all rails have in common
  bool supports_gpu_pointers = false, supports_dmabuf = false;
  // What some rail writes to memory of GPUs takes another way than its completions: it is to be flushed.
  bool has_data_direct = false;
  bool takes_out_of_order =
      false;  // every rail: queue pairs whose messages overtake each other (VERBENA_OOO_RQ)
};

// How many queue pairs a connection has on each rail: VERBENA_QPS_PER_CONNECTION, else one for each port of a
// bond.
uint32_t count_queue_pairs_per_rail(const Nic& nic);

// All devices of the process, physical ones first. Not thread safe: the net core locks.
class NicRegistry {
 public:
  static base::Result<std::unique_ptr<NicRegistry>> discover();

  int size() const { return static_cast<int>(nics_.size()); }
  // Stable address; null for an index out of range.
  const Nic* find(int index) const;
  // Joins physical devices, or makes one of a device alone; the same members give the same virtual device
  // again.
  base::Result<int> add_virtual(std::span<const int> members);

 private:
  std::vector<std::unique_ptr<verbs::Device>> devices_;
  std::vector<std::unique_ptr<Nic>> nics_;
  int count_physical_ = 0;  // of nics_
};

}  // namespace verbena::transport
