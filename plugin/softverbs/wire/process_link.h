// A connection of this process to one rail of a process on another host: several streams, and the queue of
// messages that wait for them.
#pragma once

#include <array>
#include <deque>

#include "softverbs/shared/clock.h"
#include "softverbs/wire/stream.h"

namespace verbena::softverbs::wire {

class Port;

// The streams for this process's requests on a rail to a process on another host, or the listening end of
// such streams. Lives while a queue pair, or the Wire object, refers to it.
class ProcessLink : public std::enable_shared_from_this<ProcessLink> {
 public:
  ProcessLink(Port& port, bool is_requester, const Hello& hello, uint16_t remote_port);

  Port& port;
  const bool is_requester;
  const Hello hello;  // sent by the connecting side
  const uint16_t remote_port;
  const uint64_t born_ns;

  const ibv_gid& peer() const;  // the address of the other rail
  bool is_dead() const { return is_dead_.load(std::memory_order_acquire); }
  bool is_up() const { return is_up_.load(std::memory_order_acquire); }
  void set_up() { is_up_.store(true, std::memory_order_release); }

  // Adds a stream. If the link has failed or has this stream already, closes the descriptor. Needs the
  // turn of the stream's loop.
  void add_stream(uint32_t index, Loop& loop, int fd, bool is_connected,
                  std::shared_ptr<crypto::EncryptedStream> encryption = nullptr);
  Stream* get_stream(uint32_t index) { return streams_[index].load(std::memory_order_acquire); }
  bool connect_stream(uint32_t index);  // requester
  int begin_connect();                  // a connecting descriptor, or -1 with errno
  void retry_streams();                 // streams that the peer closed before they could identify themselves
  void connect_rest();                  // all streams after the first, once

  // Any thread may call it. `from_poster`: this thread sends a short message itself if the stream is free.
  void submit(std::shared_ptr<OutMessage> message, bool from_poster);
  uint32_t choose_primary(uint32_t qp_index);  // the primary stream, for its short messages
  bool has_room(size_t limit = 1 << 16);       // false: too many bytes are queued
  void cancel(uint32_t qp_index);
  // Returns the next frame for a stream; null if there is none, or only a frame that the loop's own thread
  // must send.
  std::shared_ptr<OutMessage> cut_frame(uint32_t stream, bool may_copy_gpu, Header& frame, bool& is_gpu_next);

  // For an accepted link: whether the client has proven that it is the peer of a queue pair of this process,
  // or has at least sent a request to such a queue pair. The link's loops set this value.
  bool is_known() const { return is_known_.load(std::memory_order_relaxed); }
  void set_known() {
    if (!is_known()) is_known_.store(true, std::memory_order_relaxed);
  }
  void note_call() { called_ns_.store(read_clock_ns(), std::memory_order_relaxed); }
  uint64_t get_call_ns() const { return called_ns_.load(std::memory_order_relaxed); }
  uint32_t count_streams();  // open ones

  // Ends the link: the loops close its streams, and queue pairs with outstanding requests fail.
  void fail(const char* why);
  uint64_t get_silence_ns();
  // Called when the peer has closed a stream. Earlier acknowledgements may still arrive on the other streams,
  // so a requester's link ends with its last stream, or when these acknowledgements take too long.
  void end_stream();
  void check_end();

 private:
  std::atomic<bool> is_dead_{false}, is_up_{false}, has_all_{false};
  std::mutex queue_mutex_;
  std::deque<std::shared_ptr<OutMessage>> queue_;
  std::array<std::atomic<Stream*>, kMaxStreams> streams_{};
  std::array<std::unique_ptr<Stream>, kMaxStreams> owned_;
  std::mutex add_mutex_;
  std::atomic<bool> is_known_{false};
  std::atomic<uint64_t> called_ns_;
  std::atomic<uint32_t> ended_streams_{0};
  std::atomic<uint64_t> ending_since_ns_{0};  // 0: no stream has ended
};

}  // namespace verbena::softverbs::wire
