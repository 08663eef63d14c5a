#include "device/ops/agreement.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "verbena/backends.h"

namespace verbena::ops {
namespace {

struct Setting {
  const char* name;
  uint64_t (*value)(const Proposal& proposal);
};
constexpr Setting kSettings[] = {
    {"packet_bytes", [](const Proposal& one) { return one.packet_bytes; }},
    {"chunk_bytes", [](const Proposal& one) { return one.chunk_bytes; }},
    {"blocks", [](const Proposal& one) { return uint64_t{one.are_own_blocks != 0 ? one.blocks : 0}; }},
    {"VERBENA_OPS_ALGORITHM", [](const Proposal& one) { return uint64_t{one.algorithm}; }},
    {"the content of the tuning file (VERBENA_TUNING_FILE)",
     [](const Proposal& one) { return one.measurements; }},
    {"has_windows", [](const Proposal& one) { return uint64_t{one.has_windows}; }},
    {"programmatic_launch", [](const Proposal& one) { return uint64_t{one.programmatic_launch}; }},
    {"VERBENA_OPS_CHECK", [](const Proposal& one) { return uint64_t{one.checks_calls}; }},
};

void compare(const std::vector<Proposal>& all) {
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (const Setting& setting : kSettings) {
      if (setting.value(all[rank]) == setting.value(all.front())) continue;
      throw Failure(VERBENA_INVALID_USAGE, "ops: ranks 0 and " + std::to_string(rank) + " differ in " +
                                               setting.name + ". This value must be the same on all ranks");
    }
  }
}

}  // namespace

void Proposal::take_failure(const Failure& cause) {
  has_failed = 1;
  std::strncpy(failure, cause.what(), sizeof(failure) - 1);
}

Agreement agree(verbena_context* context, const Proposal& mine, const std::exception_ptr& failure) {
  std::vector<Proposal> all(verbena_context_size(context));
  check(verbena_context_gather(context, &mine, all.data(), sizeof(mine)));
  if (failure) std::rethrow_exception(failure);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].has_failed == 0) continue;
    throw Failure(VERBENA_REMOTE_ERROR,
                  "ops: rank " + std::to_string(rank) + " cannot create the communicator: " +
                      std::string(all[rank].failure, strnlen(all[rank].failure, kFailureBytes)));
  }
  compare(all);
  Agreement agreement{mine.blocks, true, true, false, false};
  for (const Proposal& one : all) {
    agreement.blocks = std::min(agreement.blocks, one.blocks);
    if (one.team == 0) continue;
    (one.is_across_hosts != 0 ? agreement.any_across : agreement.any_inside) = true;
    // FAULT(own_gpu_has_clusters)
    agreement.has_clusters = agreement.has_clusters && one.has_clusters != 0;
    if (one.team != mine.team) continue;
    agreement.have_same_gpu =
        agreement.have_same_gpu && std::strncmp(one.gpu, mine.gpu, sizeof(mine.gpu)) == 0;
  }
  return agreement;
}

}  // namespace verbena::ops
