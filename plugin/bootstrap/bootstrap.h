// What the ranks of a symmetric-memory context tell each other on the host, before and besides RDMA. One
// object a rank, used by one thread at a time; several may live in a process. All calls are collective: every
// rank makes the same ones in the same order, and each returns within its deadline, or at once when a rank
// fails or goes. The first error is the last: each further call returns it.
//
// The environment (load_parameters()) and the job key (load_job_key()) have been read before.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/carrier.h"
#include "bootstrap/collective_call.h"
#include "bootstrap/rendezvous.h"

namespace verbena::bootstrap {

struct BootstrapOptions {
  int64_t timeout_ms = 0;           // of joining and of each call; 0: VERBENA_BOOTSTRAP_TIMEOUT_MS
  uint32_t fan_out = kFanOutRanks;  // every rank's must be the same
  Patience patience = Patience::kNone;
};

class Bootstrap {
 public:
  // Returns once all ranks have joined.
  static base::Result<Bootstrap> join(const UniqueId& id, uint32_t rank, uint32_t count_ranks,
                                      const BootstrapOptions& options = {});
  static base::Result<Bootstrap> join(const Meeting& meeting, uint32_t rank, uint32_t count_ranks,
                                      const BootstrapOptions& options = {});
  // Over the caller's own all-gather, which must be collective and keep its own deadline.
  static base::Result<Bootstrap> from_all_gather(AllGatherFunction function, void* context, uint32_t rank,
                                                 uint32_t count_ranks);

  uint32_t rank() const { return carrier_->rank(); }
  uint32_t count_ranks() const { return carrier_->count_ranks(); }

  base::Outcome barrier();
  // `all` has count_ranks() times the length of `mine`; rank 0's comes first.
  base::Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
  // Part i of `mine` goes to rank i, part i of `theirs` came from rank i: count_ranks() parts of one length
  // each.
  base::Outcome exchange(std::span<const std::byte> mine, std::span<std::byte> theirs);
  // After a step in which each rank for itself may have failed: all succeed, or all get the error of the
  // lowest rank that failed. `text` says what that rank logged; the others log it with its number. The
  // bootstrap stays usable.
  base::Outcome all_agree(base::Outcome mine, std::string_view text);
  // No call: whether everybody is still there, as far as this rank can see without waiting.
  base::Outcome look_around() { return carrier_->look_around(); }

  // Of each call from now on; nothing over the caller's own all-gather.
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
