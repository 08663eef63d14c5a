// The verbs objects of the application. Each object begins with libibverbs's public struct, so the object and
// the struct have the same address. Also defines the limits of the device.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <mutex>

#include "softverbs/engine/process.h"
#include "softverbs/shared/boundary.h"
#include "softverbs/shared/completion_ring.h"
#include "softverbs/shared/config.h"

namespace verbena::softverbs {

inline constexpr uint8_t kPort = 1;
inline constexpr uint32_t kMaxFormerRings = 20;
static_assert(kMaxCqEntries <= 1u << kMaxFormerRings);
inline constexpr uint32_t kMaxMessageBytes = 1u << 30;
inline constexpr uint32_t kMaxDeviceMemoryBytes = 256 << 10;
// A datagram is at most as long as the MTU, as on a network. With the private flag kSendLongDatagram in its
// request, a datagram may have up to 128 KiB after a header, so that one copy to GPU memory moves much data.
inline constexpr uint32_t kMtuBytes = 4096, kMaxDatagramBytes = (128 << 10) + 24;
inline constexpr uint32_t kSendLongDatagram = 1u << 30;
inline constexpr uint32_t kMaxReads = 16;
inline constexpr int kGidCount = 2;

struct Device {
  ibv_device base{};
  // Provider libraries expect their operations here, directly after ibv_device. Any other value means that
  // the device belongs to another provider.
  const void* driver_operations = nullptr;
  uint32_t index = 0;
  std::atomic<uint32_t> address_handles{0};
};
static_assert(sizeof(ibv_device) == 664);

struct Context {
  verbs_context verbs{};  // ends with the ibv_context that the application sees
  Device* device = nullptr;
  uint32_t index = 0;                // of its async pipe
  std::atomic<bool> is_dead{false};  // after IBV_EVENT_DEVICE_FATAL
};

struct Pd {
  ibv_pd base{};
  uint32_t id = 0;
  std::atomic<uint32_t> users{0};
  Pd* origin = nullptr;  // of a parent or imported domain, which has the id of its origin
  std::atomic<uint32_t>* thread_users = nullptr;
};

struct Mr {
  ibv_mr base{};
  uint32_t index = 0;
  uint32_t gpu = 0;  // as in SharedMr
  Pd* pd = nullptr;
  bool is_imported = false;
  std::atomic<uint32_t>* memory_users = nullptr;  // of the device memory that contains it
};

struct Ah {
  ibv_ah base{};
  ibv_ah_attr attributes{};
  bool is_local = false;  // the address belongs to this host
};

struct Channel {
  ibv_comp_channel base{};
  SharedPipe pipe;
};

struct Cq {
  union {
    ibv_cq base;
    ibv_cq_ex extended;
    // Newer headers may read functions here; this library has none.
    uint8_t newer_headers[sizeof(ibv_cq_ex) + 64];
  };
  std::atomic<uint32_t> index{0};
  // The rings that were used before the queue grew, oldest first. Each growth at least doubles the queue.
  uint32_t formers[kMaxFormerRings] = {};
  std::atomic<uint32_t> former_count{0};
  std::mutex poll_mutex;
  SteppedOver stepped_over, formers_stepped_over[kMaxFormerRings];  // under poll_mutex
  Completion current{};  // of ibv_start_poll and ibv_next_poll, under poll_mutex
  std::atomic<uint32_t> users{0};

  Cq() : newer_headers{} {}
};

// The owner's private half of a receive queue.
struct ReceiveQueue {
  uint32_t index = 0;
  uint32_t max_requests = 0;
  int min_sge = 0;  // minimum number of pieces of a receive
  uint32_t max_sge = 0;
  uint64_t ring = 0;  // private copy, because a peer could overwrite the shared value
  SharedReceiveQueue* shared = nullptr;
  std::mutex post_mutex;
};

struct Srq {
  ibv_srq base{};
  ReceiveQueue queue;
  uint32_t srq_index = 0;
  std::atomic<uint32_t> users{0};
};

inline Context& get_context(ibv_context* context) {
  return *reinterpret_cast<Context*>(reinterpret_cast<char*>(context) - offsetof(verbs_context, context));
}
inline Pd& get_pd(ibv_pd* pd) {
  return *reinterpret_cast<Pd*>(pd);
}
inline Cq& get_cq(ibv_cq* cq) {
  return *reinterpret_cast<Cq*>(cq);
}
inline Srq& get_srq(ibv_srq* srq) {
  return *reinterpret_cast<Srq*>(srq);
}

// In receive_queue.cc. 0 or an errno.
int open_receive_queue(ReceiveQueue& queue, uint32_t max_requests, uint32_t max_sge, uint32_t pd);
void close_receive_queue(ReceiveQueue& queue);
int post_receives(ReceiveQueue& queue, ibv_recv_wr* request, ibv_recv_wr** bad);

// The functions that verbs.h's inline functions call; open_device installs them.
int poll_cq(ibv_cq* cq, int count, ibv_wc* completions);
int request_notification(ibv_cq* cq, int solicited_only);
int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad);
int post_receive(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad);
int post_shared_receive(ibv_srq* srq, ibv_recv_wr* request, ibv_recv_wr** bad);
int query_port_sized(ibv_context* context, uint8_t port, ibv_port_attr* attributes, size_t bytes);
int query_device_sized(ibv_context* context, const ibv_query_device_ex_input* input,
                       ibv_device_attr_ex* attributes, size_t bytes);

// In devices.cc.
Device* const* get_devices();  // kMaxDevices of them; the first count_devices() are visible
uint32_t count_devices();
ibv_gid get_gid(uint32_t device, int index);
bool has_gid(uint32_t device, const ibv_gid& gid);
bool is_local_gid(const ibv_gid& gid);  // on any rail of this host

template <typename T>
T* fail_with(int error) {
  errno = error;
  return nullptr;
}

}  // namespace verbena::softverbs

// Marks a function that the version script exports. No exception leaves such a function (boundary.h).
#define SOFTVERBS_API extern "C" __attribute__((visibility("default")))
