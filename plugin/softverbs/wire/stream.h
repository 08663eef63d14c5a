#pragma once

#include <sys/uio.h>

#include "crypto/encrypted_stream.h"
#include "softverbs/wire/loop.h"
#include "softverbs/wire/message.h"

namespace verbena::softverbs::wire {

class Link;

// What a stream is to do with a request's chunk.
enum class Verdict { kPlace, kDrop, kHold, kBreak };

// One TCP connection of a link.
class Stream : public Watched {
 public:
  // `encryption`: of an accepted stream, where there is one.
  Stream(Link& link, uint32_t index, Loop& loop, int fd, bool is_connected,
         std::shared_ptr<crypto::EncryptedStream> encryption);
  ~Stream() override;

  const uint32_t index;
  Loop& loop() { return loop_; }
  Link& link() { return link_; }
  bool is_ready() const { return is_ready_.load(std::memory_order_relaxed); }
  bool is_sent_away() const { return is_sent_away_.load(std::memory_order_relaxed); }

  // With the loop's turn.
  void watch();
  void on_ready(uint32_t events) override;
  void resume();  // takes up a chunk that was held
  void close();
  void reconnect();                        // if it was sent away
  void acknowledge(const Header& header);  // joined with others for the same queue pair until the turn ends
  void control(const Header& header);      // sent as soon as possible

  // Any thread. Sends what can be sent without waiting.
  void pump();
  void pump_soon();  // in the loop
  // Forgets frames of a queue pair's requests: afterwards the stream does not refer to their memory.
  void cancel(uint32_t qp_index);
  // A registration ends: what is left of a request's frame is taken from it while it is there.
  void forget_memory(uint32_t key);
  void abandon(const Header& request);  // it, or what is left of it, will not come
  // How long the other host has not been heard of.
  uint64_t get_silence_ns();

 private:
  enum class Reading { kHello, kHeader, kHeld, kPayload };
  enum class Buffered { kNeedsMore, kStopped };

  // The send mutex, for all but pump(): who lets it go sees to it that those are served who came to pump
  // meanwhile.
  class Hold {
   public:
    explicit Hold(Stream& stream) : stream_(stream) { stream_.send_mutex_.lock(); }
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Stream& stream_;
  };

  // stream_send.cc; with send_mutex_.
  void say_hello();
  bool pump_once();
  bool begin_frame();
  ibv_wc_status find_payload(bool is_gpu);
  void give_up_frame(ibv_wc_status status);
  ssize_t send_some();
  ssize_t send_encrypted();
  size_t gather(uint8_t* to, size_t most_bytes);
  bool is_pending() const { return encryption_ != nullptr && encryption_->is_pending(); }
  void account(size_t bytes);
  bool keep_remainder();

  // stream_receive.cc; with the turn.
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

  Link& link_;
  Loop& loop_;

  std::mutex watch_mutex_;  // innermost
  bool wants_room_ = false, wants_data_ = true;
  void watch(bool& interest, bool wanted);

  std::mutex send_mutex_;  // by Hold or pump()
  // Not 0: somebody came to pump. Only read-modify-writes, as they have one order: a holder that looks after
  // it let go of the mutex either sees a request, or whoever comes with a later one finds the mutex free.
  std::atomic<uint32_t> wants_pump_{0};
  int fd_;  // -1: closed. Changes with the turn and send_mutex_.
  bool is_connected_;
  // Null: none, or not yet. Changes with the turn and send_mutex_; its sending half is used with this one,
  // its receiving half with that.
  std::shared_ptr<crypto::EncryptedStream> encryption_;
  std::atomic<bool> is_ready_;  // the hello was answered: frames may follow
  std::atomic<bool> is_sent_away_{false};
  std::atomic<bool> is_pump_posted_{false};
  std::vector<uint8_t> greeting_;        // goes out before all else
  Hello said_{};                         // our hello
  std::vector<uint8_t> control_;         // goes out between frames
  std::shared_ptr<OutMessage> message_;  // of the frame that is being sent
  Header frame_{};
  std::vector<iovec> output_;  // what is left of the frame
  bool is_begun_ = false;      // some of the frame is out
  bool is_broken_ = false;     // what is left of the frame cannot be had any more
  std::vector<uint8_t> remainder_;

  Reading reading_ = Reading::kHello;
  std::vector<uint8_t> buffer_;
  uint32_t begin_ = 0, end_ = 0;        // what it holds
  Header header_{};                     // of the chunk that is arriving
  std::shared_ptr<Transfer> transfer_;  // null: its payload is dropped, or taken as a whole
  uint32_t done_ = 0;                   // of its payload
  bool has_ended_ = false;              // the peer has closed it
  bool needs_gpu_ = false;              // the transfer's memory is a GPU's
  Memory memory_;
  std::vector<Header> acknowledgements_;
};

}  // namespace verbena::softverbs::wire
