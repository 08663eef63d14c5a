// One TCP connection of a link: sends and receives frames.
#pragma once

#include <sys/uio.h>

#include "crypto/encrypted_stream.h"
#include "softverbs/wire/loop.h"
#include "softverbs/wire/message.h"

namespace verbena::softverbs::wire {

class ProcessLink;

// How a stream handles a request's chunk.
enum class Verdict { kPlace, kDrop, kHold, kBreak };

// One TCP connection of a link.
class Stream : public Watched {
 public:
  // `encryption` is set only for an accepted stream with encryption; otherwise it is null.
  Stream(ProcessLink& link, uint32_t index, Loop& loop, int fd, bool is_connected,
         std::shared_ptr<crypto::EncryptedStream> encryption);
  ~Stream() override;

  const uint32_t index;
  Loop& loop() { return loop_; }
  ProcessLink& link() { return link_; }
  bool is_ready() const { return is_ready_.load(std::memory_order_relaxed); }
  bool is_sent_away() const { return is_sent_away_.load(std::memory_order_relaxed); }

  // Needs the loop's turn.
  bool watch();
  void on_ready(uint32_t events) override;
  void resume();  // continues with a chunk that was held
  void close();
  void reconnect();                        // if the peer closed it early
  void acknowledge(const Header& header);  // combined with others for the same queue pair until the turn ends
  void control(const Header& header);      // sent as soon as possible

  // Any thread may call it. Sends as much as possible without waiting.
  void pump();
  void pump_soon();  // later, in the loop
  // Removes the frames of a queue pair's requests: afterwards the stream does not refer to their memory.
  void cancel(uint32_t qp_index);
  // Called when a registration ends: copies the rest of a request's frame while its memory is still there.
  void forget_memory(uint32_t key);
  // Notifies the peer that the request, or the rest of it, will not come.
  void abandon(const Header& request);
  // Returns how long no data has arrived from the other host.
  uint64_t get_silence_ns();

 private:
  enum class Reading { kHello, kHeader, kHeld, kPayload };
  enum class Buffered { kNeedsMore, kStopped };

  // Holds the send mutex. All functions except pump() lock the mutex with a Hold. When a Hold releases the
  // mutex, it also does the work of the threads that called pump() in the meantime.
  class Hold {
   public:
    explicit Hold(Stream& stream) : stream_(stream) { stream_.send_mutex_.lock(); }
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Stream& stream_;
  };

  // stream_send.cc; these functions need send_mutex_.
  void say_hello();
  bool pump_once();
  bool begin_frame();
  ibv_wc_status find_payload(bool is_gpu);
  void give_up_frame(ibv_wc_status status);
  ssize_t send_some();
  ssize_t send_encrypted();
  size_t gather(uint8_t* to, size_t max_bytes);
  bool is_pending() const { return encryption_ != nullptr && encryption_->is_pending(); }
  void account(size_t bytes);
  bool keep_remainder();

  // stream_receive.cc; these functions need the turn.
  void receive();
  void end();
  Buffered work_off();
  bool take_hello();
  bool take_header();
  Buffered take_up();
  bool take_payload();
  void store(const uint8_t* from, uint32_t bytes);
  ssize_t receive_more();
  ssize_t receive_encrypted();
  ssize_t receive_directly(bool& is_possible);
  void end_chunk();
  void finish_connect();
  bool try_again();
  void flush_acknowledgements();
  void watch_data(bool wanted);
  uint32_t available() const { return end_ - begin_; }

  ProcessLink& link_;
  Loop& loop_;

  std::mutex watch_mutex_;  // locked after all others
  bool wants_room_ = false, wants_data_ = true;
  void watch(bool& interest, bool wanted);

  std::mutex send_mutex_;  // taken by Hold or by pump()
  // Not 0 if a thread called pump() while the mutex was held. The value is changed only by
  // read-modify-writes, which have one total order: a holder that checks the value after releasing the mutex
  // either sees the request, or a later caller finds the mutex free.
  std::atomic<uint32_t> wants_pump_{0};
  int fd_;  // -1: closed; changes with both the turn and send_mutex_
  bool is_connected_;
  // Null without encryption, or before it is set up. Changes with both the turn and send_mutex_. The sending
  // half is used with send_mutex_, the receiving half with the turn.
  std::shared_ptr<crypto::EncryptedStream> encryption_;
  std::atomic<bool> is_ready_;  // the Hello was answered: frames may follow
  std::atomic<bool> is_sent_away_{false};
  std::atomic<bool> is_pump_posted_{false};
  std::vector<uint8_t> greeting_;        // sent before all other data
  Hello said_{};                         // our hello
  std::vector<uint8_t> control_;         // sent between frames
  std::shared_ptr<OutMessage> message_;  // of the frame that is being sent
  Header frame_{};
  std::vector<iovec> output_;  // the rest of the frame
  bool is_begun_ = false;      // a part of the frame was sent
  bool is_broken_ = false;     // the rest of the frame can no longer be read
  std::vector<uint8_t> remainder_;

  Reading reading_ = Reading::kHello;
  std::vector<uint8_t> buffer_;
  uint32_t begin_ = 0, end_ = 0;        // the bytes in the buffer
  Header header_{};                     // of the chunk that is arriving
  std::shared_ptr<Transfer> transfer_;  // null: the payload is dropped, or collected as a whole
  uint32_t done_ = 0;                   // of its payload
  bool has_ended_ = false;              // the peer has closed the stream
  bool needs_gpu_ = false;              // the transfer has GPU memory
  Memory memory_;
  std::vector<Header> acknowledgements_;
};

}  // namespace verbena::softverbs::wire
