// A listener and its clients: accepted connections that are not authenticated yet. Any process may connect,
// so the number of clients is limited, the client that has been silent longest is dropped first, and each
// client has a time limit for its authentication. Clients cannot keep the listener's owner busy or fill its
// log: only the first refusal is logged as a warning.
//
// The owner polls, calls advance(), and takes the links of authenticated clients.
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
#include "base/movable.h"
#include "base/socket.h"
#include "base/status.h"
#include "bootstrap/frame_link.h"

namespace verbena::bootstrap {

class Callers {
 public:
  // The time limit. A rank identifies itself as soon as it is connected; an unauthenticated client may never
  // do so.
  static constexpr int64_t kIntroductionMs = 10000;
  // Returns the maximum number of clients: a fraction of this process's limit of open files.
  static size_t find_limit();

  // The owner's answer to a hello, in addition to the check of its key; `detail` is for kOtherCount.
  struct Verdict {
    Refusal refusal = Refusal::kNone;
    uint32_t detail = 0;
  };
  using Judge = std::function<Verdict(const Hello&)>;

  // An object without a listener.
  Callers() = default;
  // `owner` names the listener's owner in the log. The thread that creates the proof must be allowed to read
  // the job key; the thread that calls advance() need not.
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
  // Returns true while an accepted caller with this rank has not been taken.
  bool has_welcomed(uint32_t rank) const;
  // Returns the link of the next authenticated caller. A link that has closed in the meantime still has its
  // received frames.
  std::optional<FrameLink> take();
  void add_poll_entries(std::vector<pollfd>& polled) const;
  // Returns the maximum time to poll these entries. While no descriptor is free, the listener is not among
  // them and must be tried again later.
  int64_t limit_wait_ms(int64_t wanted_ms) const;
  // Closes the listener and all callers.
  void close();

 private:
  struct Caller {
    FrameLink link;
    base::Deadline deadline;
  };

  bool is_paused() const { return paused_until_ns_ != 0; }
  void accept_all(const Judge& judge);
  void drop_oldest(const Judge& judge);
  void serve(Caller& caller, const Judge& judge);
  void note_refusal(const FrameLink& link);

  base::Listener listener_;
  Proof proof_;
  std::string owner_;
  std::vector<Caller> callers_;  // the oldest first
  int64_t paused_until_ns_ = 0;  // 0: not paused
  base::Movable<uint64_t> refused_;
};

}  // namespace verbena::bootstrap
