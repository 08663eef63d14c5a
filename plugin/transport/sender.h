// The sending end of a connection. protocol/send_core.h decides when and how messages are sent. connection.h
// has the parts that both ends share. This class connects them to verbs. Only the thread with the progress
// token (progress_token.h) uses a sender. Unless an error occurs, no function allocates, locks or logs.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "protocol/send_core.h"
#include "transport/connection.h"
#include "transport/ends.h"
#include "transport/memory/control_block.h"
#include "transport/request.h"

namespace verbena::transport {

// SendingEnd is the first base class, so that its virtual calls need no adjustment of the pointer.
class Sender final : public SendingEnd, public protocol::SendCore<Sender, CoreTypes>, public Connection {
 public:
  using Core = protocol::SendCore<Sender, CoreTypes>;

  // `peer` has all options except the times, which come from the parameters.
  Sender(Link link, ControlMemory control, const protocol::SendOptions& peer,
         std::unique_ptr<PeerChannel> channel);
  ~Sender();

  // Returns no request if the ring is full or, in connections without staging, if the peer has posted no free
  // receive with this tag. `may_stage` means that the caller expects the receiving kernel to unpack the
  // message.
  Posted post(const void* data, uint64_t length_bytes, const Registration* memory, bool may_stage,
              int32_t tag) override;
  using SendingEnd::post;
  // Writes *done. A completed request may be reused. Requests may be tested in any order.
  base::Outcome test(SendMessage& message, bool* done);
  base::Outcome test(Request& request, int* done, int* lengths_bytes) override;
  // Requests that still use the memory fail without further action.
  void release(const Registration*) override {}
  Statistics close() override;
  observe::Connection* observer() const override { return observed(); }
  using SendingEnd::stages;

 private:
  friend Core;
  friend protocol::ConnectionCore<Sender, protocol::SenderRecovery>;

  // --- The core's port.
  using WorkRequest = verbs::WorkRequest;

  protocol::ControlView control() const { return control_.view(); }
  bool poll_completions();
  WorkRequest make_work(uint32_t queue_pair, const Registration* memory,
                        const protocol::SendWork& work) const {
    return {.opcode = !work.is_write ? verbs::Opcode::kSendImm
                      : work.has_imm ? verbs::Opcode::kWriteImm
                                     : verbs::Opcode::kWrite,
            .signaled = work.is_signaled,
            .imm = work.imm,
            .cookie = work.cookie,
            .local = work.data,
            .local_key = memory == nullptr ? 0 : memory->regions[link_.rail_of(queue_pair)].local_key(),
            .length = work.length_bytes,
            .remote_key = work.remote_key,
            .remote = work.remote};
  }
  // SendCore has checked that the send queue has space. Marks requests that could not be posted, so that they
  // are sent again.
  bool post_work(uint32_t queue_pair, const WorkRequest& request) {
    return link_.pair(queue_pair).post_unchecked(request).is_ok() || note_unposted(queue_pair);
  }
  bool post_work(uint32_t queue_pair, std::span<const WorkRequest> requests) {
    return link_.pair(queue_pair).post(requests).is_ok() || note_unposted(queue_pair);
  }
  bool post_trial(uint32_t queue_pair, uint64_t cookie);
  protocol::Replay* make_replay();
  void note_post(uint32_t sequence, uint64_t bytes) { observed_->note_post(sequence, bytes, 0); }
  void note_replay(uint32_t sequence, uint32_t queue_pair, uint64_t bytes) {
    observed_->note_replay(sequence, link_.rail_of(queue_pair), bytes);
  }
  void warn_of_stall();

  // --- For Connection.
  int64_t progress_idle() override { return serve(); }
  void fail_pair(uint32_t queue_pair, bool is_final, uint32_t sequence) override {
    fail_queue_pair(queue_pair, is_final, sequence);
  }
  uint32_t oldest_message() const override { return consumed(); }
  std::string explain(protocol::Failure fault, uint32_t number) const override;
  StateDump describe() override;
  StateDump dump_from_outside() const override;

  [[gnu::cold, gnu::noinline]] void note_exception(const verbs::Completion& completion, uint32_t queue_pair);
  [[gnu::cold, gnu::noinline]] bool note_unposted(uint32_t queue_pair);
  std::string describe_state(const Core& core, bool is_seen_from_outside) const;
  std::string describe_queue_pair(uint32_t queue_pair);

  ControlMemory control_;
  std::unique_ptr<protocol::Replay> replays_;  // created at the first failure
};

}  // namespace verbena::transport
