// Executes a queue pair's requests like adaptive routing with out-of-order placement. Outstanding WRITEs, and
// the packets of each WRITE, are placed in an order that a seed determines. Immediates, SENDs, READs and
// atomics take effect after everything posted before them. Completions keep the posting order, so the data of
// a completed request has arrived.
//
// Works only between processes of one host. A WRITE with GPU memory is placed as a whole.
#pragma once

#include <vector>

#include "softverbs/engine/send_runner.h"

namespace verbena::softverbs {

struct Shuffle {
  struct Piece {
    Operation* op;
    uint64_t number;  // of the request
    uint64_t offset, bytes;
  };
  uint64_t key = 0;    // of its random numbers: from the profile's seed and the queue pair
  uint64_t draws = 0;  // random numbers taken
  uint64_t held_until_ns = 0;
  std::vector<Piece> left;  // of the requests in Qp::flying
};

// One run of a queue pair that has a Shuffle; as run_until() in send_runner.cc.
Stop run_shuffled(Qp& qp, uint64_t end, Runner runner);

}  // namespace verbena::softverbs
