// The way to the ranks that loads and stores do not reach, and to the others for what NICs alone may do: an
// endpoint, the put queues of this rank's kernels, and the proxy between them.
#pragma once

#include <memory>
#include <string>

#include "base/virtual_memory.h"
#include "bootstrap/bootstrap.h"
#include "device/proxy/proxy.h"
#include "verbena/endpoint.h"

namespace verbena::symm {

inline constexpr uint32_t kMaxWindows = 256;  // of a context

class Remote {
 public:
  // Collective. Queues are in memory of the calling thread's current GPU. `abort` outlives it.
  static base::Result<std::unique_ptr<Remote>> open(bootstrap::Bootstrap& bootstrap, int gpu,
                                                    AbortWord& abort);

  const PutQueueView& queues() const { return queues_.view(); }
  // `memory` at this offset of the heap, as region `region` of all ranks. Collective.
  base::Outcome add_window(bootstrap::Bootstrap& bootstrap, const Window& window,
                           const base::MappedPiece& memory);
  // Nothing of it is under way, from any rank.
  void remove_window(const Window& window);
  // Until all is complete that kernels asked for that have ended; from any thread.
  base::Outcome quiet() { return proxy_->quiet(); }
  bool has_stopped() const { return proxy_->is_stopping(); }
  // The first failure, in words; empty: none.
  std::string error() const { return proxy_->error(); }
  void fail(const std::string& cause) { proxy_->fail(cause); }
  // Nothing is taken from the queues any more.
  void stop() { proxy_->stop(); }

 private:
  Remote(std::unique_ptr<Endpoint> endpoint, PutQueue queues)
      : endpoint_(std::move(endpoint)), queues_(std::move(queues)) {}
  base::Outcome connect(bootstrap::Bootstrap& bootstrap);
  base::Outcome add_own(const Window& window, const base::MappedPiece& memory);

  std::unique_ptr<Endpoint> endpoint_;
  PutQueue queues_;
  std::unique_ptr<Proxy> proxy_;  // drives both: the first to go
};

}  // namespace verbena::symm
