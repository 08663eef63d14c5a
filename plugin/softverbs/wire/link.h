#pragma once

#include <array>
#include <deque>

#include "softverbs/clock.h"
#include "softverbs/wire/stream.h"

namespace verbena::softverbs::wire {

class Port;

// The streams between this process's requests on a rail and a process on another host, or the other end of
// such. Lives while a queue pair or the wire refers to it.
class Link : public std::enable_shared_from_this<Link> {
 public:
  Link(Port& port, bool is_requester, const Hello& hello, uint16_t remote_port);

  Port& port;
  const bool is_requester;
  const Hello hello;  // as the connecting side says it
  const uint16_t remote_port;
  const uint64_t born_ns;

  const ibv_gid& peer() const;  // address of the other rail
  bool is_dead() const { return is_dead_.load(std::memory_order_acquire); }
  bool is_up() const { return is_up_.load(std::memory_order_acquire); }
  void set_up() { is_up_.store(true, std::memory_order_release); }

  // Gives it a stream, or closes the descriptor. With the turn of its loop.
  void add_stream(uint32_t index, Loop& loop, int fd, bool is_connected,
                  std::shared_ptr<crypto::EncryptedStream> encryption = nullptr);
  Stream* get_stream(uint32_t index) { return streams_[index].load(std::memory_order_acquire); }
  bool connect_stream(uint32_t index);  // requester
  int begin_connect();                  // a descriptor that is connecting, or -1 and errno
  void retry_streams();                 // that the peer sent away before they could say who they are
  void connect_rest();                  // the streams behind the first, once

  // Any thread. `from_poster`: a short message is sent by this thread if its stream is free.
  void submit(std::shared_ptr<OutMessage> message, bool from_poster);
  uint32_t choose_home(uint32_t qp_index);  // a stream for its short messages
  bool has_room(size_t limit = 1 << 16);    // false: too much waits to be sent
  void cancel(uint32_t qp_index);
  // The next frame for a stream; null when there is none, or only one for the loop's own thread.
  std::shared_ptr<OutMessage> cut_frame(uint32_t stream, bool may_copy_gpu, Header& frame, bool& is_gpu_next);

  // Of an accepted link: its caller has shown that it is a peer of a queue pair of ours, or has at least
  // called one. Of its loops.
  bool is_known() const { return is_known_.load(std::memory_order_relaxed); }
  void set_known() {
    if (!is_known()) is_known_.store(true, std::memory_order_relaxed);
  }
  void note_call() { called_ns_.store(read_clock_ns(), std::memory_order_relaxed); }
  uint64_t get_call_ns() const { return called_ns_.load(std::memory_order_relaxed); }
  uint32_t count_streams();  // that there are

  // Ends it: every stream is closed by its loop, queue pairs with requests under way fail.
  void fail(const char* why);
  uint64_t get_silence_ns();
  // The peer has closed a stream. What it acknowledged before may still come on others, so a requester's link
  // ends with the last of them, or when they take too long.
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
