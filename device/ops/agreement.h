// What all ranks of a context bring to a communicator when it is made. Settings that decide how calls meet
// are compared, and named where they differ; what ranks may have of their own (another GPU, other
// communicators in the process) becomes what serves all. docs/collectives.md lists what may differ among
// ranks and what may not.
#pragma once

#include <cstdint>
#include <exception>

#include "verbena/verbena.hpp"

namespace verbena::ops {

inline constexpr uint32_t kNameBytes = 64, kFailureBytes = 256;

// Sent as it lies. Members of different teams of one context must agree as well: their workspaces are made in
// one call.
struct Proposal {
  uint64_t packet_bytes = 0, chunk_bytes = 0;
  uint64_t measurements = 0;  // a hash of the tuning file's content; 0: there is none
  uint32_t algorithm = 0;     // of VERBENA_OPS_ALGORITHM
  uint32_t has_windows = 0, programmatic_launch = 0, checks_calls = 0;
  uint32_t blocks = 0;          // most of a kernel
  uint32_t are_own_blocks = 0;  // 1: the caller asked for them, and all ranks have to have the same
  uint32_t team = 0;            // world rank of its first member, plus one; 0: this rank is no member
  uint32_t is_across_hosts = 0;
  uint32_t has_clusters = 0;  // the GPU can launch kernels in clusters of blocks
  uint32_t has_failed = 0;    // this rank cannot make the communicator, for a reason:
  char failure[kFailureBytes] = {};
  char gpu[kNameBytes] = {};  // as the driver names it

  void take_failure(const Failure& cause);
};

struct Agreement {
  uint32_t blocks = 0;
  bool has_clusters = false;                    // all GPUs of the team
  bool have_same_gpu = false;                   // all ranks of the team: measurements of that GPU count
  bool any_inside = false, any_across = false;  // whether any rank's team lies in one host, in several
};

// Collective over the context. Throws on all ranks if one has failed or if settings differ: `failure` where
// this rank has one, a Failure that names the ranks elsewhere.
Agreement agree(verbena_context* context, const Proposal& mine, const std::exception_ptr& failure);

}  // namespace verbena::ops
