// A net device of NCCL: one port, or several ports joined into a virtual device. The ports are the rails of
// every connection on the net device.
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
      name;  // differs from all verbs names, so that NCCL's own transport never shares the device's node
  // The path of the device's card, or of its Data Direct function. All functions of one card, virtual
  // functions too, have the same path. Empty if unknown.
  std::string pci_path;
  int port = 1;  // distinguishes the ports of one card, across its functions
  std::vector<verbs::Device*> rails;
  std::vector<int> members;  // indices of the physical devices
  uint64_t guid = 0;
  uint32_t speed_mbps = 0;  // of all rails together
  verbs::PortPlace place;   // the common part of all rails' places
  bool supports_gpu_pointers = false, supports_dmabuf = false;
  // True if, for some rail, writes to GPU memory take another route than completions (Data Direct). Such
  // writes must be flushed.
  bool has_data_direct = false;
  bool takes_out_of_order =
      false;  // every rail: queue pairs whose messages overtake each other (VERBENA_OOO_RQ)
};

// Returns the number of queue pairs of a connection on each rail: VERBENA_QPS_PER_CONNECTION or, if it is not
// set, one for each port of a bond.
uint32_t count_queue_pairs_per_rail(const Nic& nic);

// All devices of the process, physical devices first. Not thread safe; the net core locks.
class NicRegistry {
 public:
  static base::Result<std::unique_ptr<NicRegistry>> discover();

  int size() const { return static_cast<int>(nics_.size()); }
  // Returns null if the index is out of range. The address stays valid.
  const Nic* find(int index) const;
  // Creates a virtual device that joins physical devices; a single member is allowed. Returns the existing
  // virtual device if there is one with the same members.
  base::Result<int> add_virtual(std::span<const int> members);

 private:
  std::vector<std::unique_ptr<verbs::Device>> devices_;
  std::vector<std::unique_ptr<Nic>> nics_;
  int count_physical_ = 0;  // number of physical devices in nics_
};

}  // namespace verbena::transport
