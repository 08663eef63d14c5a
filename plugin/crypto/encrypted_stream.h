// The bytes of a TCP connection, encrypted and authenticated: AES-256-GCM, one key each way, records that are
// counted. A record that was changed, left out, repeated, moved or cut short ends the connection.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

struct evp_cipher_ctx_st;

namespace verbena::crypto {

// Of one connection alone: derived from the job's key and both ends' challenges.
using StreamKey = std::array<uint8_t, 32>;

// For one non-blocking socket, which the caller keeps. Sending and receiving may be two threads', each of
// them one at a time. Once a call has failed with EBADMSG the connection must be closed.
class EncryptedStream {
 public:
  // How much plain text a record may have, the same at both ends, so how much memory this takes; and whether
  // it may read more than one record at a time: not if somebody else is to notice that the socket has more.
  struct Size {
    size_t record_bytes;
    bool reads_ahead;
  };
  static constexpr Size kForBulk{64 << 10, true}, kForControl{4 << 10, false};

  // Null without a libcrypto.
  static std::unique_ptr<EncryptedStream> create(const StreamKey& sending, const StreamKey& receiving,
                                                 Size size);
  ~EncryptedStream();
  EncryptedStream(const EncryptedStream&) = delete;
  EncryptedStream& operator=(const EncryptedStream&) = delete;

  // Sending, for callers whose bytes may be others when they come again: what is sealed counts as sent. Only
  // while nothing is pending.
  size_t most_bytes() const { return size_.record_bytes; }
  uint8_t* room();          // for most_bytes()
  bool seal(size_t bytes);  // what stands in room()
  bool is_pending() const { return out_at_ < out_bytes_; }
  // True: nothing is pending any more. False with errno: EAGAIN, or the connection is broken.
  bool flush(int fd);

  // As send(2): how many of the bytes are sent, or -1 and errno. After EAGAIN the caller comes again with the
  // same bytes.
  ssize_t send(int fd, const void* data, size_t bytes);

  // As recv(2). EBADMSG: a record that the peer has not sent so; ECONNRESET: the connection ended within one.
  ssize_t receive(int fd, void* data, size_t bytes);
  // The same without a copy: how many bytes stand at received(), until take() says that they are done with.
  ssize_t receive(int fd);
  const uint8_t* received() const { return in_.data() + plain_at_; }
  void take(size_t bytes) { plain_at_ += bytes; }
  bool has_received() const { return plain_at_ < plain_end_; }  // more than the caller has taken
  // Something has been read from the socket that receive() has not given: the socket tells nobody of it any
  // more.
  bool has_buffered() const { return has_received() || in_at_ < in_end_; }

 private:
  struct FreeContext {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  using Context = std::unique_ptr<evp_cipher_ctx_st, FreeContext>;
  static Context make_context(const StreamKey& key, bool encrypts);

  explicit EncryptedStream(Size size) : size_(size) {}
  bool open_next(bool& is_whole);
  size_t count_wanted() const;

  const Size size_;
  Context sender_, receiver_;
  uint64_t sent_ = 0, received_ = 0;  // records
  std::vector<uint8_t> out_, in_;     // records, encrypted in their place
  size_t out_at_ = 0, out_bytes_ = 0;
  size_t taken_ = 0;               // plain bytes of what is pending, for send()
  size_t in_at_ = 0, in_end_ = 0;  // what has come and is not opened
  size_t plain_at_ = 0, plain_end_ = 0;
};

}  // namespace verbena::crypto
