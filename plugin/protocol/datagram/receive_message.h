// A message at its receiver, from its first packet, request or receive until it is consumed.
#pragma once

#include <cstdint>

#include "protocol/datagram/slab.h"

namespace verbena::protocol::datagram {

enum class ReceiveState : uint8_t {
  kFree,
  kParked,  // packets or a request came before the receive
  kPosted,
  kMoving,  // all packets have arrived, some are still being copied
  kDone,    // at its destination or on loan to the GPU; may have been reported to the caller
};

struct ReceiveMessage {
  uint64_t room_bytes = 0;
  uint64_t bytes = 0;  // minimum length, from the packets so far; exact once the last packet has arrived
  uint32_t number = 0;
  uint32_t channel = 0;
  uint32_t received = 0;  // packets
  uint32_t total = 0;     // packets; 0 until the last one has arrived
  uint32_t wanted = 0;    // packets, as the sender has announced
  uint32_t granted = 0;
  uint32_t held = 0;    // pages
  uint32_t moving = 0;  // pages
  uint32_t lent = 0;    // pages
  uint32_t eager = 0;   // packets whose eager credits are in use
  // Maximum number of pages that may be lent, limited by its slot; 0: the message is copied.
  uint32_t most_pages = 0;
  // Its held or lent pages, in the order of arrival. This is usually the order of their bytes, so that one
  // call copies contiguous pages.
  uint32_t first_page = kNoObject, last_page = kNoObject;
  ReceiveState state = ReceiveState::kFree;
  bool is_copied = false;  // copied and not lent, by choice or because pages are scarce
  bool is_short = false;   // the whole message arrived as one packet in a small-message buffer
  uint8_t rails = 0;       // a bit for each rail that has carried a part of it
  // State of its grants; used by Grants only.
  bool is_wanting = false;  // wants more than was granted
  uint8_t length_class = 0;
  uint8_t idle_audits = 0;  // audits in a row without a packet
  bool is_granted = false;  // in the list of messages that are audited
  bool is_doubted = false;  // its last grant brought no packet
  uint32_t audited = 0;     // packets that had arrived at the last audit
  enum class Told : uint8_t {
    kAll,
    kNot,
    kOnce
  } told = Told::kAll;  // whether its grant must be sent, once more or twice
  ListLink demand, audits;
  uint32_t next_told = kNoObject;  // in the peer's chain for that purpose

  uint32_t outstanding() const { return granted > received ? granted - received : 0; }
};

struct DemandLink {
  static ListLink& of(ReceiveMessage& message) { return message.demand; }
};
struct AuditLink {
  static ListLink& of(ReceiveMessage& message) { return message.audits; }
};

}  // namespace verbena::protocol::datagram
