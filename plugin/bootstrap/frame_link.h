// One TCP connection of the bootstrap, at either end: first the introduction, then frames. No call blocks,
// and no call logs: problem() returns why the link ended, and the owner logs it with the ranks' names.
#pragma once

#include <poll.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/hmac.h"
#include "base/record_auth.h"
#include "base/socket.h"
#include "base/status.h"
#include "bootstrap/messages.h"

namespace verbena::bootstrap {

// The proof that two ranks are of one job: both have the job's key or, in a job without one, the secret of
// the unique id. A MAC covers the kind of its message and all messages before it, so also both challenges:
// the listener's is the first message of all.

// Compares in constant time.
bool is_same_nonce(const Nonce& a, const Nonce& b);

// Creates and checks the proofs of one end of a link.
class Proof {
 public:
  // Uses the process's job key if there is one, otherwise `id_secret`; zeros mean that there is none.
  static base::Result<Proof> create(const Nonce& id_secret = {});

  bool is_keyed() const { return kind_ != KeyKind::kNone; }
  // Fill in the MAC of a message whose other fields are final, and a hello's challenge.
  base::Outcome sign(const Challenge& challenge, Hello& hello) const;
  base::Outcome sign(const Challenge& challenge, const Hello& hello, Welcome& welcome) const;
  // Judges only the key; the caller compares the other fields of the hello.
  Refusal judge(const Challenge& challenge, const Hello& hello) const;
  Refusal judge(const Challenge& challenge, const Hello& hello, const Welcome& welcome) const;
  // Encrypts the connection if VERBENA_ENCRYPTION is set. Call it before the first byte.
  base::Outcome encrypt(base::Socket& socket, base::ConnectionEnd end) const;
  base::Result<base::RecordAuth> start_records(base::ConnectionEnd end, const Challenge& challenge,
                                               const Hello& hello, const Welcome& welcome) const;

 private:
  Refusal judge_mac(const base::Result<base::Mac>& right, const base::Mac& claimed) const;

  KeyKind kind_ = KeyKind::kNone;
  bool encrypts_ = false;
  std::shared_ptr<const base::HmacKey> key_;
};

// Describe a refusal: the first for the end that was refused, the second for the end that refuses.
const char* describe(Refusal refusal);
const char* describe_caller(Refusal refusal);

class FrameLink {
 public:
  // The connecting end; connect() adds challenge and MAC to the hello. `id_secret`: see Proof::create().
  static base::Result<FrameLink> connect(const base::SocketAddress& peer, const Hello& hello,
                                         const Nonce& id_secret = {});
  // `proof` was made by a thread that may read the job key; the calling thread need not.
  static FrameLink accept(base::Socket socket, const Proof& proof);

  // Sends and receives as much as possible without waiting.
  void advance();
  // Returns true once both ends have introduced themselves. Earlier frames are sent then.
  bool is_standing() const { return step_ == Step::kStanding; }
  bool is_closed() const { return step_ == Step::kClosed; }
  // For the accepting end: returns whether the caller's hello was accepted. hello() is then authenticated.
  bool has_welcomed() const { return step_ == Step::kAwaitingReady || step_ == Step::kStanding; }
  // For the accepting end: returns true while the caller has not proven its identity.
  bool is_stranger() const {
    return step_ == Step::kAwaitingHello || step_ == Step::kAsked || step_ == Step::kAwaitingReady ||
           step_ == Step::kRefusing;
  }
  const std::string& problem() const { return problem_; }
  const base::SocketAddress& peer() const { return socket_.peer(); }

  // For the accepting end: the client's hello, whose magic and version were checked; null once it is
  // answered. The owner decides by answer(). A link that refuses is closed after the answer is sent.
  const Hello* asking() const { return step_ == Step::kAsked ? &hello_ : nullptr; }
  void answer(Refusal refusal, uint32_t detail = 0);
  const Hello& hello() const { return hello_; }
  // For the connecting end: the reason of a refusal (kNone if there was none), and whether the link was ever
  // connected and got an answer.
  Refusal refusal() const { return welcome_.refusal; }
  bool was_connected() const { return was_connected_; }
  bool was_answered() const { return was_answered_; }
  uint32_t refusal_detail() const { return welcome_.detail; }

  void send(Record record);
  bool is_flushed() const { return is_closed() || (greeting_.empty() && out_.empty()); }
  // Returns the next received frame. It is complete and its MAC was checked, but its content was not.
  Record take();
  bool has_arrivals() const { return !inbox_.empty(); }
  // The events that advance() waits for. A closed link has the descriptor -1, which poll ignores.
  pollfd poll_entry() const;
  void close(std::string problem);

 private:
  void close_lost();
  enum class Step : uint8_t {
    kConnecting,
    kAwaitingChallenge,
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
    bool is_sealed = false;  // sealed just before its first byte is sent, because records are counted
    size_t sent_bytes = 0;
  };

  FrameLink(base::Socket socket, Proof proof, Step step)
      : socket_(std::move(socket)), proof_(std::move(proof)), step_(step) {}

  bool step();
  bool finish_connect();
  bool receive_challenge();
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
  Challenge challenge_;
  Hello hello_;
  Welcome welcome_;
  bool was_connected_ = false, was_answered_ = false;
  std::string problem_;
  std::vector<uint8_t> greeting_;  // the rest of challenge, hello or welcome that is not sent yet
  std::deque<Outgoing> out_;
  std::vector<uint8_t> in_;  // the first in_bytes_ are received
  size_t in_bytes_ = 0;
  std::deque<Record> inbox_;
};

}  // namespace verbena::bootstrap
