#include "bootstrap/bootstrap.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"
#include "bootstrap/tree_carrier.h"

namespace verbena::bootstrap {
namespace {

constexpr size_t kMaxTextBytes = 240;

// The data of all_agree().
struct Vote {
  uint32_t status = 0;
  int32_t errno_value = 0;
  char text[kMaxTextBytes] = {};
};

base::Outcome check_place(uint32_t rank, uint32_t count_ranks) {
  if (count_ranks > 0 && count_ranks <= kMaxRanks && rank < count_ranks) return {};
  return base::fail(base::Status::kInvalidArgument,
                    "bootstrap: rank %u of %u does not exist. The first rank has number 0", rank,
                    count_ranks);
}

// Collective calls over the caller's all-gather.
class CallerCarrier final : public Carrier {
 public:
  CallerCarrier(AllGatherFunction function, void* context, uint32_t rank, uint32_t count_ranks)
      : function_(function), context_(context), rank_(rank), count_ranks_(count_ranks) {}

  base::Outcome all_gather(Operation what, std::span<const std::byte> mine,
                           std::span<std::byte> all) override;
  // Gathers all parts on every rank, because the caller's function can do nothing else.
  base::Outcome exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) override;
  base::Outcome check_ranks() override { return state_; }
  uint32_t rank() const override { return rank_; }
  uint32_t count_ranks() const override { return count_ranks_; }

 private:
  AllGatherFunction function_;
  void* context_;
  uint32_t rank_, count_ranks_;
  base::Outcome state_;
};

base::Outcome CallerCarrier::all_gather(Operation, std::span<const std::byte> mine,
                                        std::span<std::byte> all) {
  if (state_.has_failed()) return state_;
  // A barrier needs no data, but an all-gather of zero bytes need not wait for the other ranks, so one byte
  // is sent.
  const std::byte token{};
  std::vector<std::byte> tokens(mine.empty() ? count_ranks_ : 0);
  const int rc = mine.empty() ? function_(context_, &token, tokens.data(), 1)
                              : function_(context_, mine.data(), all.data(), mine.size());
  if (rc == 0) return {};
  state_ = base::fail(
      base::Status::kRemote,
      "bootstrap: rank %u of %u: the all-gather function that the caller passed failed (result %d)", rank_,
      count_ranks_, rc);
  return state_;
}

base::Outcome CallerCarrier::exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) {
  std::vector<std::byte> all(mine.size() * count_ranks_);
  if (auto gathered = all_gather(Operation::kExchange, mine, all); !gathered) return gathered;
  const size_t part_bytes = mine.size() / count_ranks_;
  for (uint32_t from = 0; from < count_ranks_; ++from) {
    std::copy_n(all.data() + (size_t{from} * count_ranks_ + rank_) * part_bytes, part_bytes,
                theirs.data() + from * part_bytes);
  }
  return {};
}

}  // namespace

base::Result<Bootstrap> Bootstrap::join(const UniqueId& id, uint32_t rank, uint32_t count_ranks,
                                        const BootstrapOptions& options) {
  const auto meeting = parse(id);
  if (!meeting) return meeting.error();
  return join(*meeting, rank, count_ranks, options);
}

base::Result<Bootstrap> Bootstrap::join(const Meeting& meeting, uint32_t rank, uint32_t count_ranks,
                                        const BootstrapOptions& options) {
  if (auto checked = check_place(rank, count_ranks); !checked) return checked.error();
  const int64_t timeout_ms =
      options.timeout_ms > 0 ? options.timeout_ms : base::parameters().bootstrap_timeout_ms;
  const TreeLinks::Place place{{count_ranks, std::max(options.fan_out, uint32_t{1})},
                               rank,
                               meeting.nonce,
                               meeting.secret,
                               options.is_loopback_only};
  TreeLinks links(place);
  if (auto listening = links.listen(); !listening) return listening.error();
  const auto parent =
      ask_for_parent(meeting, place, links.address(), base::Deadline::after_ms(timeout_ms), options.patience);
  if (!parent) return parent.error();
  if (rank != 0) {
    if (auto connected = links.connect_parent(*parent); !connected) return connected.error();
  }
  auto carrier = std::make_unique<TreeCarrier>(place, std::move(links), timeout_ms);
  if (auto joined = carrier->all_gather(Operation::kJoin, {}, {}); !joined) return joined.error();
  return Bootstrap(std::move(carrier));
}

base::Result<Bootstrap> Bootstrap::from_all_gather(AllGatherFunction function, void* context, uint32_t rank,
                                                   uint32_t count_ranks) {
  if (auto checked = check_place(rank, count_ranks); !checked) return checked.error();
  if (function == nullptr) {
    return base::fail(base::Status::kInvalidArgument,
                      "bootstrap: the pointer to the all-gather function is NULL");
  }
  return Bootstrap(std::make_unique<CallerCarrier>(function, context, rank, count_ranks));
}

base::Outcome Bootstrap::barrier() {
  return carrier_->all_gather(Operation::kBarrier, {}, {});
}

base::Outcome Bootstrap::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  if (all.size() == mine.size() * count_ranks())
    return carrier_->all_gather(Operation::kAllGather, mine, all);
  return base::fail(
      base::Status::kInvalidArgument,
      "bootstrap: all-gather: %zu bytes from each of %u ranks do not fill an output of exactly %zu bytes",
      mine.size(), count_ranks(), all.size());
}

base::Outcome Bootstrap::exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) {
  if (mine.size() != theirs.size() || mine.size() % count_ranks() != 0)
    return base::fail(base::Status::kInvalidArgument,
                      "bootstrap: exchange: the input has %zu bytes and the output has %zu bytes, but the "
                      "two lengths must be equal and a multiple of the number of ranks (%u)",
                      mine.size(), theirs.size(), count_ranks());
  // At least one rank holds all parts of all ranks; their total length grows with the square of the number of
  // ranks.
  constexpr uint64_t kMostHeldBytes = uint64_t{256} << 20;
  const size_t part_bytes = mine.size() / count_ranks(),
               slice_bytes = std::max<size_t>(kMostHeldBytes / (uint64_t{count_ranks()} * count_ranks()), 1);
  if (part_bytes <= slice_bytes) return carrier_->exchange(mine, theirs);
  std::vector<std::byte> some, others;
  for (size_t done = 0; done < part_bytes; done += slice_bytes) {
    const size_t bytes = std::min(slice_bytes, part_bytes - done);
    some.resize(bytes * count_ranks());
    others.resize(some.size());
    for (size_t i = 0; i < count_ranks(); ++i)
      std::copy_n(mine.data() + i * part_bytes + done, bytes, some.data() + i * bytes);
    if (auto exchanged = carrier_->exchange(some, others); !exchanged) return exchanged;
    for (size_t i = 0; i < count_ranks(); ++i)
      std::copy_n(others.data() + i * bytes, bytes, theirs.data() + i * part_bytes + done);
  }
  return {};
}

base::Outcome Bootstrap::all_agree(base::Outcome mine, std::string_view text) {
  Vote vote{static_cast<uint32_t>(mine.status()), mine.error().errno_value, {}};
  std::copy_n(text.begin(), std::min(text.size(), kMaxTextBytes - 1), vote.text);
  std::vector<Vote> votes(count_ranks());
  auto gathered = carrier_->all_gather(Operation::kAgree, std::as_bytes(std::span(&vote, 1)),
                                       std::as_writable_bytes(std::span(votes)));
  if (!gathered) return gathered;
  const auto failed =
      std::find_if(votes.begin(), votes.end(), [](const Vote& one) { return one.status != 0; });
  if (failed == votes.end()) return {};
  const auto who = static_cast<uint32_t>(failed - votes.begin());
  if (who == rank()) return mine;
  const bool is_known = failed->status <= static_cast<uint32_t>(base::Status::kTimeout);
  failed->text[kMaxTextBytes - 1] = '\0';
  base::Error error =
      base::fail(is_known ? static_cast<base::Status>(failed->status) : base::Status::kRemote,
                 "bootstrap: rank %u of %u: rank %u failed: %s", rank(), count_ranks(), who, failed->text);
  error.errno_value = failed->errno_value;
  return error;
}

}  // namespace verbena::bootstrap
