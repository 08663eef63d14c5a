// The two ends of a channel as NCCL's adapter uses them. Each transport implements both: sender.h and
// receiver.h over connected queue pairs, datagram/channel.h over datagrams. One thread at a time uses an end.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "observe/connection.h"
#include "transport/request.h"

namespace verbena::transport {

class MessageEnd {
 public:
  virtual ~MessageEnd() = default;
  // Tests a request that this end returned. A completed request may be reused by the end. A receive that the
  // caller must consume is reused only after consume().
  // @param done           receives 1 if the request is complete, otherwise 0; an int, as in NCCL's interface
  // @param lengths_bytes  NULL, or an array that receives the number of bytes sent or received for each
  //                       buffer, once the request is complete
  virtual base::Outcome test(Request& request, int* done, int* lengths_bytes) = 0;
  // Ends the requests that use the memory. Call it before the memory is deregistered.
  virtual void release(const Registration* memory) = 0;
  // Ends the channel. Returns the counters of this end. The only valid call afterwards is the destructor.
  virtual Statistics close() = 0;
  // Returns NULL if this end is not observed.
  virtual observe::Connection* observer() const = 0;
};

// The result of a post. Both members are returned in registers.
struct [[nodiscard]] Posted {
  Request* request = nullptr;  // NULL if nothing can be posted now, or on an error
  base::Outcome outcome;
};

class SendingEnd : public MessageEnd {
 public:
  // Returns whether messages may be staged, so that post() needs a valid `may_stage`.
  bool stages() const { return stages_; }
  // Sends a message. The end reads the memory until the request is done.
  // @param may_stage  whether the receiving kernel is expected to unpack the message
  // @return           no request if the message cannot be sent now; try again later
  virtual Posted post(const void* data, uint64_t length_bytes, const Registration* memory, bool may_stage,
                      int32_t tag) = 0;
  // The same with a request as an output.
  base::Outcome post(const void* data, uint64_t length_bytes, const Registration* memory, bool may_stage,
                     Request** request, int32_t tag = 0) {
    const Posted posted = post(data, length_bytes, memory, may_stage, tag);
    *request = posted.request;
    return posted.outcome;
  }

 protected:
  explicit SendingEnd(bool stages) : stages_(stages) {}

 private:
  const bool stages_;
};

// One buffer of a receive.
using ReceiveBuffer = protocol::ReceiveBufferOf<CoreTypes>;

class ReceivingEnd : public MessageEnd {
 public:
  // Returns whether a kernel unpacks receives. In this case each receive has one buffer and must be consumed.
  bool unpacks() const { return unpacks_; }
  // Returns how many buffers a receive may have.
  uint32_t max_buffers() const { return max_buffers_; }
  // Receives a message into one buffer.
  // @return  no request if no receive can be posted now; try again later
  virtual Posted post(void* data, uint64_t length_bytes, const Registration* memory,
                      ReceiveClass receive_class, int32_t tag) = 0;
  // The same with a request as an output.
  base::Outcome post(void* data, uint64_t length_bytes, const Registration* memory,
                     ReceiveClass receive_class, Request** request, int32_t tag = 0) {
    const Posted posted = post(data, length_bytes, memory, receive_class, tag);
    *request = posted.request;
    return posted.outcome;
  }
  // Receives a message into each of the buffers, at most max_buffers(), with one request.
  virtual base::Outcome post_group(std::span<const ReceiveBuffer> buffers, Request** request) = 0;
  // Frees the slot and the pages of a receive, after the kernel has unpacked the message.
  virtual base::Outcome consume(Request& request) = 0;
  // Makes the data that arrived in `data` visible to the GPU.
  // @param request  receives NULL if there is nothing to wait for
  virtual base::Outcome flush(const void* data, const Registration* memory, Request** request) = 0;

 protected:
  ReceivingEnd(bool unpacks, uint32_t max_buffers) : unpacks_(unpacks), max_buffers_(max_buffers) {}

 private:
  const bool unpacks_;
  const uint32_t max_buffers_;
};

}  // namespace verbena::transport
