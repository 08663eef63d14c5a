// One TCP connection of the bootstrap, at either end: introduces itself, then carries frames. No call blocks
// and none logs: what ended a link is its problem(), which its owner tells with the ranks' names.
#pragma once

#include <poll.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hmac.h"
#include "base/record_auth.h"
#include "base/socket.h"
#include "base/status.h"
#include "bootstrap/messages.h"

namespace verbena::bootstrap {

// What proves, when two ranks meet, that both are of one job: that both have the job's key, or, in a job
// without one, the secret of the unique id. A MAC covers its message's kind and every message before it, so
// both challenges.

// In constant time.
bool is_same_nonce(const Nonce& a, const Nonce& b);

// One end's.
class Proof {
 public:
  // With the process's job key if there is one; else with `id_secret`, where zeros are none.
  static base::Result<Proof> create(const Nonce& id_secret = {});

  bool is_keyed() const { return kind_ != KeyKind::kNone; }
  // Each fills in challenge and MAC of a message whose other fields are final.
  base::Outcome sign(Hello& hello) const;
  base::Outcome sign(const Hello& hello, Welcome& welcome) const;
  // Of the key alone: the caller compares what the hello says.
  Refusal judge(const Hello& hello) const;
  Refusal judge(const Hello& hello, const Welcome& welcome) const;
  // Before the first byte, if VERBENA_ENCRYPTION asks for it.
  base::Outcome encrypt(base::Socket& socket, base::ConnectionEnd end) const;
  base::Result<base::RecordAuth> start_records(base::ConnectionEnd end, const Hello& hello,
                                               const Welcome& welcome) const;

 private:
  Refusal judge_mac(const base::Result<base::Mac>& right, const base::Mac& claimed) const;

  KeyKind kind_ = KeyKind::kNone;
  bool encrypts_ = false;
  std::shared_ptr<const base::HmacKey> key_;
};

// Whom the end that was refused met, and whom the end that refuses.
const char* describe(Refusal refusal);
const char* describe_caller(Refusal refusal);

// For the accepting end: a rank says who it is as soon as it is connected; a stranger may never.
inline constexpr int64_t kIntroductionMs = 10000;
// At how many strangers the longest silent one is sent away: a part of the descriptors that we may have.
size_t find_most_strangers();

class Link {
 public:
  // The connecting end; its hello lacks challenge and MAC. `id_secret`: see Proof::create().
  static base::Result<Link> connect(const base::SocketAddress& peer, const Hello& hello,
                                    const Nonce& id_secret = {});
  // `proof` was made by a thread that may read the job key, which this one need not.
  static Link accept(base::Socket socket, const Proof& proof);

  // Moves everything that can move now.
  void advance();
  // Both ends have introduced themselves. What is sent before waits for it.
  bool is_standing() const { return step_ == Step::kStanding; }
  bool is_closed() const { return step_ == Step::kClosed; }
  // The accepting end: the caller has not proven yet who it is; what it says may be what others said before.
  bool is_stranger() const {
    return step_ == Step::kAwaitingHello || step_ == Step::kAsked || step_ == Step::kAwaitingReady ||
           step_ == Step::kRefusing;
  }
  const std::string& problem() const { return problem_; }
  const base::SocketAddress& peer() const { return socket_.peer(); }

  // The accepting end: what the caller says about itself, its magic and version checked; null once answered.
  // The owner judges it. A link that refuses closes once that is sent.
  const Hello* asking() const { return step_ == Step::kAsked ? &hello_ : nullptr; }
  void answer(Refusal refusal, uint32_t detail = 0);
  const Hello& hello() const { return hello_; }
  // The connecting end: why it was refused, kNone if it was not; whether it was ever connected, and answered.
  Refusal refusal() const { return welcome_.refusal; }
  bool was_connected() const { return was_connected_; }
  bool was_answered() const { return was_answered_; }
  uint32_t refusal_detail() const { return welcome_.detail; }

  void send(Record record);
  bool is_flushed() const { return is_closed() || (greeting_.empty() && out_.empty()); }
  // The next frame that came, checked to be whole and genuine; its content is not.
  Record take();
  bool has_arrivals() const { return !inbox_.empty(); }
  // What advance() waits for; a closed link's descriptor is -1, which poll ignores.
  pollfd poll_entry() const;
  void close(std::string problem);

 private:
  void close_lost();
  enum class Step : uint8_t {
    kConnecting,
    kAwaitingWelcome,
    kAwaitingHello,
    kAsked,
    kAwaitingReady,
    kRefusing,
    kStanding,
    kClosed
  };
  struct Outgoing {
    Record record;
    base::Mac mac{};
    bool is_sealed = false;  // just before its first byte goes, as records are counted
    size_t sent_bytes = 0;
  };

  Link(base::Socket socket, Proof proof, Step step)
      : socket_(std::move(socket)), proof_(std::move(proof)), step_(step) {}

  bool step();
  bool finish_connect();
  bool receive_hello();
  bool receive_welcome();
  bool receive_frame();
  void start_records(base::ConnectionEnd end);
  bool fill(size_t wanted_bytes);
  template <typename Message>
  bool receive(Message& message);
  template <typename Message>
  void greet(const Message& message);
  bool flush_greeting();
  void flush();

  base::Socket socket_;
  Proof proof_;
  base::RecordAuth auth_;
  Step step_;
  Hello hello_;
  Welcome welcome_;
  bool was_connected_ = false, was_answered_ = false;
  std::string problem_;
  std::vector<uint8_t> greeting_;  // hello or welcome, what of it is not sent yet
  std::deque<Outgoing> out_;
  std::vector<uint8_t> in_;  // the first in_bytes_ have come
  size_t in_bytes_ = 0;
  std::deque<Record> inbox_;
};

}  // namespace verbena::bootstrap
