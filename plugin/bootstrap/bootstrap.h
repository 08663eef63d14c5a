// The communication between the ranks of a symmetric-memory context on the host, independent of RDMA. Each
// rank has one object, used by one thread at a time; a process may have several. All calls are collective:
// every rank makes the same calls in the same order. A call returns within its deadline, or at once when a
// rank fails or leaves. After an error every further call returns the same error.
//
// The caller has read the environment (load_parameters()) and the job key (load_job_key()) before.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/collective_call.h"
#include "bootstrap/rendezvous.h"

namespace verbena::bootstrap {

struct BootstrapOptions {
  int64_t timeout_ms = 0;           // for joining and for each call; 0: VERBENA_BOOTSTRAP_TIMEOUT_MS
  uint32_t fan_out = kFanOutRanks;  // must be the same on every rank
  Patience patience = Patience::kNone;
  bool is_loopback_only = false;  // all ranks are on this host: listen for children on loopback
};

class Bootstrap {
 public:
  // Returns once all ranks have joined.
  static base::Result<Bootstrap> join(const UniqueId& id, uint32_t rank, uint32_t count_ranks,
                                      const BootstrapOptions& options = {});
  static base::Result<Bootstrap> join(const Meeting& meeting, uint32_t rank, uint32_t count_ranks,
                                      const BootstrapOptions& options = {});
  // Uses the caller's all-gather, which must be collective and have its own deadline.
  static base::Result<Bootstrap> from_all_gather(AllGatherFunction function, void* context, uint32_t rank,
                                                 uint32_t count_ranks);

  uint32_t rank() const { return carrier_->rank(); }
  uint32_t count_ranks() const { return carrier_->count_ranks(); }

  base::Outcome barrier();
  // `all` has count_ranks() times the length of `mine`; rank 0's comes first.
  base::Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
  // Part i of `mine` goes to rank i; part i of `theirs` comes from rank i. Both have count_ranks() parts of
  // the same length.
  base::Outcome exchange(std::span<const std::byte> mine, std::span<std::byte> theirs);
  // Call it after a step that may have failed on each rank separately: either all succeed, or all get the
  // error of the lowest rank that failed. `text` is the line that this rank logged; the others log it with
  // the rank's number. The bootstrap stays usable.
  base::Outcome all_agree(base::Outcome mine, std::string_view text);
  // Returns whether all ranks are still alive, as far as this rank can see without waiting. Not collective.
  base::Outcome check_ranks() { return carrier_->check_ranks(); }

  // Sets the timeout of later calls. Has no effect with the caller's own all-gather.
  void set_timeout_ms(int64_t timeout_ms) { carrier_->set_timeout_ms(timeout_ms); }

  template <typename T>
  base::Result<std::vector<T>> gather(const T& mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(count_ranks());
    auto done = all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    if (!done) return done.error();
    return all;
  }

 private:
  explicit Bootstrap(std::unique_ptr<Carrier> carrier) : carrier_(std::move(carrier)) {}

  std::unique_ptr<Carrier> carrier_;
};

}  // namespace verbena::bootstrap
