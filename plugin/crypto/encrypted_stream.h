// Encrypts and authenticates the bytes of a TCP connection: AES-256-GCM, with a key for each direction and
// numbered records. A record that was changed, omitted, repeated, moved or truncated ends the connection.
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

// The key of one direction of one connection, derived from the job's key and from both ends' challenges.
using StreamKey = std::array<uint8_t, 32>;

// Serves one non-blocking socket, which the caller owns. One thread may send while another receives. After a
// call has failed with EBADMSG the connection must be closed.
class EncryptedStream {
 public:
  // The maximum length of a record's plain text, which must be the same at both ends; memory grows with it.
  // `reads_ahead` allows reading more than one record from the socket at a time. It must be false if a
  // mechanism such as epoll must detect that there is more to read.
  struct Size {
    size_t record_bytes;
    bool reads_ahead;
  };
  static constexpr Size kForBulk{64 << 10, true}, kForControl{4 << 10, false};

  // Returns null if libcrypto was not found.
  static std::unique_ptr<EncryptedStream> create(const StreamKey& sending, const StreamKey& receiving,
                                                 Size size);
  ~EncryptedStream();
  EncryptedStream(const EncryptedStream&) = delete;
  EncryptedStream& operator=(const EncryptedStream&) = delete;

  // For callers that cannot repeat the same bytes after EAGAIN: write up to max_bytes() to room() and seal()
  // them. They then count as sent, and flush() sends them. Allowed only while nothing is pending.
  size_t max_bytes() const { return size_.record_bytes; }
  uint8_t* room();
  bool seal(size_t bytes);
  bool is_pending() const { return out_at_ < out_bytes_; }
  // Returns true once nothing is pending. If it returns false, errno is EAGAIN, or the connection is broken.
  bool flush(int fd);

  // Like send(2): returns how many of the bytes were sent, or -1 with errno. After EAGAIN the caller must
  // repeat the call with the same bytes.
  ssize_t send(int fd, const void* data, size_t bytes);

  // Like recv(2). Fails with EBADMSG if a record differs from what the peer sent, and with ECONNRESET if the
  // connection ended within a record.
  ssize_t receive(int fd, void* data, size_t bytes);
  // Receives without a copy: returns how many bytes are at received(). They stay there until take() releases
  // them.
  ssize_t receive(int fd);
  const uint8_t* received() const { return in_.data() + plain_at_; }
  void take(size_t bytes) { plain_at_ += bytes; }
  bool has_received() const { return plain_at_ < plain_end_; }  // bytes that the caller has not taken
  // Returns whether bytes were read from the socket that receive() has not returned yet. Polling the socket
  // does not show them.
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
  uint64_t sent_ = 0, received_ = 0;  // number of records
  std::vector<uint8_t> out_, in_;     // records, encrypted in place
  size_t out_at_ = 0, out_bytes_ = 0;
  size_t taken_ = 0;               // plain bytes of the pending record, for send()
  size_t in_at_ = 0, in_end_ = 0;  // received and not yet decrypted
  size_t plain_at_ = 0, plain_end_ = 0;
};

}  // namespace verbena::crypto
