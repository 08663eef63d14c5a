// A listener, and those who called at it and have not proven yet who they are. Anybody may call: their number
// is limited, whoever has been silent for longest goes first, and each has a time to prove itself. Nobody
// keeps the listener's owner busy, or fills its log: only the first refusal is a warning.
//
// The owner polls, advances, and takes the links of those who have proven themselves.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/socket.h"
#include "base/status.h"
#include "bootstrap/link.h"

namespace verbena::bootstrap {

class Callers {
 public:
  // A rank identifies itself as soon as it is connected; a stranger may never do so.
  static constexpr int64_t kIntroductionMs = 10000;
  // A part of the descriptors that this process may have.
  static size_t find_limit();

  // What a hello gets beside the judgement of its key; `detail` is for kOtherCount.
  struct Verdict {
    Refusal refusal = Refusal::kNone;
    uint32_t detail = 0;
  };
  using Judge = std::function<Verdict(const Hello&)>;

  // Takes nobody.
  Callers() = default;
  // `owner` is who is called, for the log. The proof was made by a thread that may read the job key; the
  // thread that advances need not.
  Callers(base::Listener listener, Proof proof, std::string owner)
      : listener_(std::move(listener)), proof_(std::move(proof)), owner_(std::move(owner)) {}
  Callers(Callers&& other) noexcept = default;
  Callers& operator=(Callers&& other) noexcept = default;
  ~Callers() { close(); }

  bool is_open() const { return listener_.fd() >= 0; }
  const base::SocketAddress& address() const { return listener_.address(); }
  int listener_fd() const { return listener_.fd(); }
  bool is_empty() const { return callers_.empty() && !is_paused(); }

  // Accepts, receives and sends as much as possible without waiting.
  void advance(const Judge& judge);
  // True while a caller that was welcomed as this rank has not been taken.
  bool has_welcomed(uint32_t rank) const;
  // The next link whose caller has proven itself. A link that has closed since still has its frames.
  std::optional<Link> take();
  void add_poll_entries(std::vector<pollfd>& polled) const;
  // The longest that may be waited for these entries: while there is no descriptor for a caller, the listener
  // is not among them.
  int64_t limit_wait_ms(int64_t wanted_ms) const;
  // Sends all away and takes nobody any more.
  void close();

 private:
  struct Caller {
    Link link;
    base::Deadline deadline;
  };

  bool is_paused() const { return paused_until_ns_ != 0; }
  void accept_all(const Judge& judge);
  void drop_oldest(const Judge& judge);
  void serve(Caller& caller, const Judge& judge);
  void note_refusal(const Link& link);

  base::Listener listener_;
  Proof proof_;
  std::string owner_;
  std::vector<Caller> callers_;  // the oldest first
  int64_t paused_until_ns_ = 0;  // 0: not paused
  struct Count {
    uint64_t value = 0;
    Count() = default;
    Count(Count&& other) noexcept : value(std::exchange(other.value, 0)) {}
    Count& operator=(Count&& other) noexcept {
      value = std::exchange(other.value, 0);
      return *this;
    }
  } refused_;
};

}  // namespace verbena::bootstrap
