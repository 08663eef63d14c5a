// Before a communicator is created, all ranks of the context agree on its settings. The ranks compare the
// settings that must be equal, and an error names a setting that differs. Some properties may differ, such as
// the GPU and the number of other communicators in the process. From these properties, the ranks derive
// settings that work for all ranks. docs/collectives.md lists what may differ between ranks.
#pragma once

#include <cstdint>
#include <exception>

#include "verbena/verbena.hpp"

namespace verbena::ops {

inline constexpr uint32_t kNameBytes = 64, kFailureBytes = 256;

// One rank's settings and properties, which are sent as raw bytes. Members of different teams of the same
// context must agree, too, because one collective call creates the workspaces of all teams.
struct Proposal {
  uint64_t packet_bytes = 0, chunk_bytes = 0;
  uint64_t measurements = 0;  // hash of the tuning file's content; 0 if there is no tuning file
  uint32_t algorithm = 0;     // from VERBENA_OPS_ALGORITHM
  uint32_t has_windows = 0, programmatic_launch = 0, checks_calls = 0;
  uint32_t blocks = 0;          // maximum number of blocks of a kernel
  uint32_t are_own_blocks = 0;  // 1 if the caller chose `blocks`, which must then be equal on all ranks
  uint32_t team = 0;            // world rank of the first member, plus one; 0 if this rank is not a member
  uint32_t is_across_hosts = 0;
  uint32_t has_clusters = 0;  // 1 if the GPU supports clusters of blocks
  uint32_t has_failed = 0;    // 1 if this rank cannot create the communicator; `failure` has the reason
  char failure[kFailureBytes] = {};
  char gpu[kNameBytes] = {};  // the driver's name of the GPU

  void take_failure(const Failure& cause);
};

struct Agreement {
  uint32_t blocks = 0;
  bool has_clusters = false;  // all GPUs of all teams support clusters
  // All ranks of the team have the same GPU, so the measurements of that GPU apply.
  bool have_same_gpu = false;
  bool any_inside = false, any_across = false;  // some team is on one host; some team spans hosts
};

// Compares the proposals. Collective over the context. Throws on all ranks if a rank has failed or if
// settings differ. A failed rank rethrows its `failure`. All other ranks throw a Failure that names the
// failed ranks or the ranks that differ.
Agreement agree(verbena_context* context, const Proposal& mine, const std::exception_ptr& failure);

}  // namespace verbena::ops
