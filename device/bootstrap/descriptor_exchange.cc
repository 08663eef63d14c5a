#include "device/bootstrap/descriptor_exchange.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "device/bootstrap/rank_list.h"
#include "device/bootstrap/unix_post.h"

namespace verbena::bootstrap {
namespace {

constexpr int64_t kStepMs = 20;  // between two looks at the others

bool is_not_now(const base::Result<bool>& sent) {
  return sent && !*sent;
}

class Exchange {
 public:
  Exchange(Bootstrap& bootstrap, const HostDomain& domain, std::span<const int> own, base::Deadline deadline)
      : bootstrap_(bootstrap),
        domain_(domain),
        own_(own.begin(), own.end()),
        deadline_(deadline),
        received_(own.size()),
        has_sent_(own.size()),
        has_come_(own.size()) {
    has_sent_[domain.local_rank()] = has_come_[domain.local_rank()] = true;
  }

  // What failed here is in `text`.
  base::Outcome run(UnixPost& post, std::span<const PostAddress> addresses, std::string& text);
  std::vector<base::FileDescriptor> take() { return std::move(received_); }

 private:
  base::Outcome send_all(std::span<const PostAddress> addresses);
  base::Outcome receive_all(UnixPost& post);
  static bool is_all(const std::vector<bool>& marks) {
    return std::find(marks.begin(), marks.end(), false) == marks.end();
  }
  bool has_sent_all() const { return is_all(has_sent_); }
  bool is_done() const { return has_sent_all() && is_all(has_come_); }
  std::string describe_missing() const;

  Bootstrap& bootstrap_;
  const HostDomain& domain_;
  std::vector<int> own_;
  base::Deadline deadline_;
  std::vector<base::FileDescriptor> received_;  // these three by the rank's place on the host
  std::vector<bool> has_sent_, has_come_;
  base::Outcome first_failure_;
};

// A failure to send or receive does not end it: the others get what we can give, and hear of it afterwards.
base::Outcome Exchange::run(UnixPost& post, std::span<const PostAddress> addresses, std::string& text) {
  while (true) {
    if (auto sent = send_all(addresses); !sent && first_failure_.is_ok()) first_failure_ = sent;
    if (auto received = receive_all(post); !received && first_failure_.is_ok()) first_failure_ = received;
    if (first_failure_.has_failed() && has_sent_all()) {
      text = "it could not pass descriptors";
      return first_failure_;
    }
    if (is_done()) return {};
    if (auto all_there = bootstrap_.look_around(); !all_there) return all_there;
    if (deadline_.has_passed()) {
      text = "passing descriptors: waited for " + describe_missing();
      return base::fail(base::Status::kTimeout, "bootstrap: rank %u of %u: %s", bootstrap_.rank(),
                        bootstrap_.count_ranks(), text.c_str());
    }
    post.wait(std::min(deadline_.remaining_ms(), kStepMs));
  }
}

base::Outcome Exchange::send_all(std::span<const PostAddress> addresses) {
  base::Outcome first_failure;
  for (size_t i = 0; i < own_.size(); ++i) {
    if (has_sent_[i]) continue;
    const auto sent = UnixPost::send(addresses[domain_.ranks()[i]], bootstrap_.rank(), own_[i]);
    if (is_not_now(sent)) continue;
    has_sent_[i] = true;
    if (sent) continue;
    if (first_failure.is_ok()) first_failure = sent.error();
    // So that the other does not wait for it; it hears why afterwards.
    has_sent_[i] =
        !is_not_now(UnixPost::send(addresses[domain_.ranks()[i]], bootstrap_.rank(), kNoDescriptor));
    own_[i] = kNoDescriptor;
  }
  return first_failure;
}

base::Outcome Exchange::receive_all(UnixPost& post) {
  while (true) {
    UnixPost::Arrival arrival;
    const auto verdict = post.receive(arrival);
    if (!verdict) return verdict.error();
    if (*verdict == UnixPost::Verdict::kNothing) return {};
    if (*verdict == UnixPost::Verdict::kStranger) continue;
    const auto& ranks = domain_.ranks();
    const auto place = std::lower_bound(ranks.begin(), ranks.end(), arrival.rank);
    if (place == ranks.end() || *place != arrival.rank) continue;  // knows the secret, and contradicts itself
    const auto index = static_cast<size_t>(place - ranks.begin());
    received_[index] = std::move(arrival.descriptor);
    has_come_[index] = true;
  }
}

std::string Exchange::describe_missing() const {
  std::vector<uint32_t> missing;
  for (size_t i = 0; i < has_come_.size(); ++i) {
    if (!has_come_[i] || !has_sent_[i]) missing.push_back(domain_.ranks()[i]);
  }
  return show_ranks(missing);
}

}  // namespace

base::Result<std::vector<base::FileDescriptor>> exchange_descriptors(Bootstrap& bootstrap,
                                                                     const HostDomain& domain,
                                                                     std::span<const int> own,
                                                                     int64_t timeout_ms) {
  const auto deadline =
      base::Deadline::after_ms(timeout_ms > 0 ? timeout_ms : base::parameters().bootstrap_timeout_ms);
  base::Outcome state;
  if (own.size() != domain.ranks().size()) {
    state = base::fail(base::Status::kInvalidArgument,
                       "bootstrap: %zu descriptors for the %zu ranks of this host", own.size(),
                       domain.ranks().size());
  }
  auto post = state.is_ok() ? UnixPost::open() : base::Result<UnixPost>(state.error());
  if (!post) state = post.error();
  // Everybody has a post, or nobody waits for any.
  if (auto agreed = bootstrap.all_agree(state, "it cannot pass descriptors"); !agreed) return agreed.error();
  const auto addresses = bootstrap.gather(post->address());
  if (!addresses) return addresses.error();
  Exchange exchange(bootstrap, domain, own, deadline);
  std::string text;
  const base::Outcome done = exchange.run(*post, *addresses, text);
  // The post closes only now, when nobody sends any more.
  if (auto agreed = bootstrap.all_agree(done, text); !agreed) return agreed.error();
  return exchange.take();
}

base::Result<std::vector<base::FileDescriptor>> share_descriptor(Bootstrap& bootstrap,
                                                                 const HostDomain& domain, int own,
                                                                 int64_t timeout_ms) {
  std::vector<int> all(domain.ranks().size(), own);
  all[domain.local_rank()] = kNoDescriptor;
  return exchange_descriptors(bootstrap, domain, all, timeout_ms);
}

}  // namespace verbena::bootstrap
