// RDMA for kernels: an endpoint, the put queues of this rank's kernels, and the proxy between queues and
// endpoint. Operations on ranks whose memory is not mapped use RDMA. Operations on all other ranks use RDMA
// only if a NIC must execute the operation.
#pragma once

#include <memory>
#include <string>

#include "base/virtual_memory.h"
#include "bootstrap/bootstrap.h"
#include "device/proxy/proxy.h"
#include "verbena/endpoint.h"

namespace verbena::symm {

inline constexpr uint32_t kMaxWindows = 256;  // per context

class Remote {
 public:
  // Opens an endpoint, with put queues in memory of the calling thread's current GPU. Collective. `abort`
  // must outlive the returned object.
  static base::Result<std::unique_ptr<Remote>> open(bootstrap::Bootstrap& bootstrap, int gpu,
                                                    AbortWord& abort);

  const PutQueueView& queues() const { return queues_.view(); }
  // Registers `memory`, which lies at the window's offset of the heap, as the window's region on all ranks.
  // Collective.
  base::Outcome add_window(bootstrap::Bootstrap& bootstrap, const Window& window,
                           const base::MappedPiece& memory);
  // Removes a window. No operation on the window may be outstanding on any rank.
  void remove_window(const Window& window);
  // Waits until all requests of finished kernels are complete. Any thread may call it.
  base::Outcome quiet() { return proxy_->quiet(); }
  bool has_stopped() const { return proxy_->is_stopping(); }
  // Returns the text of the first failure, or an empty text if there was none.
  std::string error() const { return proxy_->error(); }
  void fail(const std::string& cause) { proxy_->fail(cause); }
  // Stops taking requests from the queues.
  void stop() { proxy_->stop(); }

 private:
  Remote(std::unique_ptr<Endpoint> endpoint, PutQueue queues)
      : endpoint_(std::move(endpoint)), queues_(std::move(queues)) {}
  base::Outcome connect(bootstrap::Bootstrap& bootstrap);
  base::Outcome add_own(const Window& window, const base::MappedPiece& memory);

  std::unique_ptr<Endpoint> endpoint_;
  PutQueue queues_;
  std::unique_ptr<Proxy> proxy_;  // uses both members above, so it is destroyed first
};

}  // namespace verbena::symm
