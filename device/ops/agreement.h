// The agreement of all ranks of a context when a communicator is created. Settings that must be equal are
// compared, and an error names the setting that differs. Properties that may differ (the GPU, other
// communicators in the process) are reduced to values that work for all ranks. docs/collectives.md lists what
// may differ among ranks.
#pragma once

#include <cstdint>
#include <exception>

#include "verbena/verbena.hpp"

namespace verbena::ops {

inline constexpr uint32_t kNameBytes = 64, kFailureBytes = 256;

// One rank's part, sent as raw bytes. Members of different teams of one context must agree too, because their
// workspaces are created in one call.
struct Proposal {
  uint64_t packet_bytes = 0, chunk_bytes = 0;
  uint64_t measurements = 0;  // hash of the tuning file's content; 0: no tuning file
  uint32_t algorithm = 0;     // from VERBENA_OPS_ALGORITHM
  uint32_t has_windows = 0, programmatic_launch = 0, checks_calls = 0;
  uint32_t blocks = 0;          // maximum per kernel
  uint32_t are_own_blocks = 0;  // 1: the caller chose `blocks`, which must then be equal on all ranks
  uint32_t team = 0;            // world rank of the first member, plus one; 0: this rank is not a member
  uint32_t is_across_hosts = 0;
  uint32_t has_clusters = 0;  // the GPU supports clusters of blocks
  uint32_t has_failed = 0;    // this rank cannot create the communicator; `failure` has the reason
  char failure[kFailureBytes] = {};
  char gpu[kNameBytes] = {};  // the driver's name of the GPU

  void take_failure(const Failure& cause);
};

struct Agreement {
  uint32_t blocks = 0;
  bool has_clusters = false;  // on all GPUs of the team
  // All ranks of the team have the same GPU, so the measurements of that GPU apply.
  bool have_same_gpu = false;
  bool any_inside = false, any_across = false;  // whether any rank's team is on one host; on several hosts
};

// Compares the proposals. Collective over the context. Throws on all ranks if a rank has failed or settings
// differ: a failed rank rethrows its `failure`; other ranks throw a Failure that names the ranks.
Agreement agree(verbena_context* context, const Proposal& mine, const std::exception_ptr& failure);

}  // namespace verbena::ops
