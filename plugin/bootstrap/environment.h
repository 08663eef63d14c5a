// Reads this process's rank from the variables of torchrun (or of a user who sets RANK by hand), Open MPI,
// PMI (MPICH, Intel MPI) or Slurm, and connects the ranks without a unique id: rank 0 listens at a port that
// all ranks derive in the same way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "bootstrap/bootstrap.h"

namespace verbena::bootstrap {

struct LaunchPlace {
  std::string launcher;  // whose variables: torchrun, Open MPI, PMI or Slurm
  uint32_t rank = 0;
  uint32_t count_ranks = 1;
  std::optional<uint32_t> local_rank;  // if the launcher sets it
  std::string host;                    // of rank 0; empty with one rank
  uint16_t port = 0;                   // of the rendezvous, not the launcher's MASTER_PORT
  std::string job;                     // distinguishes this job from others at the same address
  bool is_one_host = false;            // the launcher started all ranks on this host
};

using VariableReader = std::function<std::string(const char* name)>;

// Takes the first of the four whose variables are set. Errors, which name the variables: an incomplete set, a
// value that is not a number, a rank that is not below the size, and two sets with the same size but
// different ranks.
base::Result<LaunchPlace> read_launch_place(const VariableReader& read, int64_t configured_port);

// Joins with the values of read_launch_place().
//
// Rank 0 listens at the address that the launcher gave; on loopback if all ranks are on its host; at all
// addresses if it cannot know by which address other hosts reach it (Kubernetes operators give rank 0
// `localhost`, and the other ranks its name). Without a job key a rank cannot prove that it belongs to the
// job. In this case ranks listen on loopback only, and other addresses fail with kInvalidUsage, unless
// VERBENA_INSECURE is set; rank 0 then warns once per process.
//
// Ranks that start before rank 0 retry until the deadline. The function may be called again for another
// context after it has returned.
base::Result<Bootstrap> join_from_environment(const BootstrapOptions& options = {});
base::Result<Bootstrap> join_at(const LaunchPlace& place, const BootstrapOptions& options = {});

// Returns the first host of Slurm's compressed list, such as node003 for node[003-007,9],other.
std::string first_host_of(const std::string& slurm_list);

}  // namespace verbena::bootstrap
