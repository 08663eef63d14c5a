// The receiving half of a queue pair whose peer is on another host: the order of requests, their
// execution, refusals.
#pragma once

#include <mutex>

#include "softverbs/engine/queue_pair.h"
#include "softverbs/wire/process_link.h"

namespace verbena::softverbs::wire {

// A request that is arriving.
struct InboundMessage : Transfer {
  Header first{};  // as its first chunk described it
  SendRequest request{};
  Operation op;
};

struct HeldStream {
  std::shared_ptr<ProcessLink> link;
  Stream* stream;
  uint64_t since_ns;
};

// The round of a session with which a client came.
struct ClientRound {
  ibv_gid peer;
  uint32_t source_qp;
  uint32_t round;
  uint64_t session;
};

// The receiving half of a queue pair. Except for `early`, only frames from the queue pair's peer change it.
struct Inbound {
  std::mutex mutex;
  uint64_t session = 0;
  uint32_t round = 0;
  uint64_t expected = 0;                    // sequence of the next message
  std::shared_ptr<InboundMessage> current;  // the next message, once a part of it has arrived
  std::vector<HeldStream> held;             // streams whose next chunk belongs to a later message
  bool is_lost = false;                     // the expected message never came
  // Lists of a few clients each, the latest last. A reset keeps them, because frames may still arrive.
  std::vector<ClientRound> early;  // refused because the queue pair did not know its peer yet
  std::vector<ClientRound> begun;  // the sessions whose first request was accepted
};

// Called by a loop, with the turn.
Verdict begin_request(ProcessLink& link, Stream& stream, const Header& header,
                      std::shared_ptr<Transfer>& transfer);
void end_request(Stream& stream, const Header& header, const std::shared_ptr<Transfer>& transfer);
void execute_request(Stream& stream, const Header& header, Transfer& transfer, const uint8_t* operands);
void deliver_datagram(Loop& loop, ProcessLink& link, const Header& header, const uint8_t* payload);

// Creates the header of a reply; in response.cc.
Header make_reply(Kind kind, const Header& request, uint64_t sequence);
Reason get_reason(ibv_wc_status status);
void respond(Stream& stream, const Header& request, std::unique_ptr<Target> source,
             std::vector<uint8_t> copy);
// Two functions for a READ whose memory cannot be read. The first one returns the refusal for the requester.
// The second one fails the queue pair; a loop calls it without the queue pair's mutexes.
Header refuse_response(const OutMessage& message, ibv_wc_status status);
void fail_responder(const Target& source, ibv_wc_status status);

// Gives up on messages for which a held stream has waited too long.
void check_held(Port& port);

// Called when the queue pair stops receiving. After it returns, no loop places data for the queue pair.
void forget_inbound(Qp& qp, bool is_reset);

}  // namespace verbena::softverbs::wire
