// What a launcher says of this process, in the variables of torchrun (and all who set RANK by hand), Open
// MPI, PMI (MPICH, Intel MPI) or Slurm, and how its ranks find each other without a unique id: rank 0 awaits
// the others at a port that all derive alike.
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
  std::optional<uint32_t> local_rank;  // if it says so
  std::string host;                    // of rank 0; empty with one rank
  uint16_t port = 0;                   // of our rendezvous, not the launcher's MASTER_PORT
  std::string job;                     // what tells this job from others at the same address
};

using VariableReader = std::function<std::string(const char* name)>;

// The first of the four whose variables are there. Half a set, values that are no numbers, a rank that is not
// below the size, and two sets that give a different rank of as many ranks are errors that name the
// variables.
base::Result<LaunchPlace> read_launch_place(const VariableReader& read, int64_t configured_port);

// Joins by what read_launch_place() finds. Rank 0 listens at the address that the launcher gave, and warns
// once without a job key, as there is no secret then that a rank could prove; whoever comes before it, tries
// again until the deadline. May be called again for a further context once it has returned.
base::Result<Bootstrap> join_from_environment(const BootstrapOptions& options = {});
base::Result<Bootstrap> join_at(const LaunchPlace& place, const BootstrapOptions& options = {});

// The first host of Slurm's compressed list: node[003-007,9],other gives node003.
std::string first_host_of(const std::string& slurm_list);

}  // namespace verbena::bootstrap
