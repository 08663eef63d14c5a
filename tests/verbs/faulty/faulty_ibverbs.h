// The hook into the faulty libibverbs: which call fails, and what was called.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

struct ibv_pd;

namespace verbena::verbs::faulty {

struct Hooks {
  // The n-th call from now on fails (set `calls` to 0); 0: none. Called from any thread.
  std::atomic<int> failing_call{0};
  std::atomic<int> failing_errno{ENOMEM};
  std::atomic<int> calls{0};
  std::atomic<const char*> failed{nullptr};  // the name of the call that failed, without ibv_
  // The same for ibv_poll_cq, which is called as often as the caller has time.
  std::atomic<int> failing_poll{0}, polls{0};
  // Registrations beyond so many that are alive fail, with ENOMEM, as with a limit on locked memory.
  std::atomic<int> most_regions{INT32_MAX};
  // Registrations of exactly this length are slow: they wait until this is something else.
  std::atomic<size_t> slow_length_bytes{0};
  std::atomic<int> slow_calls{0};           // that have begun
  std::atomic<bool> ports_are_down{false};  // what ibv_query_port says
  // What ibv_query_device says of the maker, so that the devices are not taken for softverbs'; 0: the truth.
  std::atomic<uint32_t> vendor{0};
  // So many of the next times that a queue pair is told its peer's address, that does not answer.
  std::atomic<int> unanswered{0};
  std::atomic<int> unanswered_ms{0};            // what each of these takes
  std::atomic<uint32_t> unanswered_devices{0};  // bit n: never, on the device whose name ends in n
  // No queue pair reaches itself: its own address does not answer; and how often one was asked to.
  std::atomic<bool> reaches_no_self{false};
  std::atomic<int> self_connects{0};
  std::atomic<int> last_ack_timeout{-1};  // of the queue pair that could send last
  // Of queue pairs of this traffic class, those that entered RTR.
  std::atomic<int> traffic_classes[256]{};
  // What the devices can do at most; from the start by the variables below.
  std::atomic<int> most_srq_entries{INT32_MAX}, most_inline_bytes{INT32_MAX};
  std::atomic<bool> refuses_more_inline{false};  // instead of granting that
  std::atomic<bool> makes_no_pairs{false};
  std::atomic<uint32_t> pairless_devices{0};  // the same of the device whose name ends in n: bit n
  // Devices that have failed for good, by end_device() or at the n-th call on `dying_device` from now on (set
  // `device_calls` to 0): bit n as above.
  std::atomic<uint32_t> dead_devices{0};
  std::atomic<int> dying_device{-1}, device_calls{0}, fatal_call{0};
  std::atomic<int> made_shared_queues{0};
  // What the devices have beside verbs, as NVIDIA's have it. Their Data Direct function's path below /sys;
  // null: none.
  std::atomic<const char*> data_direct_path{nullptr};
  std::atomic<bool> refuses_data_direct{false};
  std::atomic<bool> takes_any_dmabuf{false};  // as if it were the memory itself, by either way
  std::atomic<int> data_direct_regions{0};    // made
  std::atomic<int> most_out_of_order{0};      // receives of a queue pair; 0: the devices take all in order
  std::atomic<int> out_of_order_pairs{0};     // made
  std::atomic<int> pairs_not_into_cqe{0};     // made: short receives do not come in their completions
  static constexpr size_t kMaxPorts = 4;
  std::atomic<int> bonded_ports[kMaxPorts]{};  // queue pairs that were told to send over port n + 1 of a bond
  std::atomic<int> bonded_datagrams[kMaxPorts]{};  // posted on these queue pairs
  // Reads posted on the device whose name ends in n.
  static constexpr size_t kMaxDevices = 10;
  std::atomic<int> reads[kMaxDevices]{};
  // Those that are posted from now on are never heard of again.
  std::atomic<bool> swallows_reads{false};
  std::atomic<bool> refuses_reads{false};  // none can be posted
  std::atomic<uint32_t> slow_devices{0};   // bit n: the port of the device whose name ends in n has 100 Gb/s
  // While set, no completion of a receive is found, and the event that tells the last one of a queue pair is
  // not delivered, as on a device that is slow to flush.
  std::atomic<bool> holds_receives{false};
  // That event never comes, as on a device that does not know it.
  std::atomic<bool> drops_last_events{false};

  std::atomic<int> live_objects{0};  // contexts, lists, domains, regions, queues, queue pairs
  std::atomic<int> live_regions{0};
  std::atomic<int> made_regions{0};
  std::atomic<int> live_pairs{0};

  // Whether a living region of this domain has this remote key, and the whole range lies in it.
  bool (*reaches)(const ibv_pd* domain, uint32_t remote_key, const void* address, size_t length_bytes);
  void (*end_device)(int number);
};

using GetHooks = Hooks* (*)();
inline constexpr char kGetHooks[] = "faulty_ibverbs_hooks";
inline constexpr char kTargetVariable[] = "FAULTY_IBVERBS_TARGET";
inline constexpr char kSrqEntriesVariable[] = "FAULTY_IBVERBS_SRQ_ENTRIES";
inline constexpr char kInlineBytesVariable[] = "FAULTY_IBVERBS_INLINE_BYTES";
inline constexpr char kOutOfOrderVariable[] = "FAULTY_IBVERBS_OUT_OF_ORDER";

}  // namespace verbena::verbs::faulty
