// A message at its receiver, from its first packet, wish or receive on until it is consumed.
#pragma once

#include <cstdint>

#include "protocol/datagram/slab.h"

namespace verbena::protocol::datagram {

enum class ReceiveState : uint8_t {
  kFree,
  kParked,  // packets or a wish came before the receive
  kPosted,
  kMoving,  // all are here, some are still being copied
  kDone,    // in its place or the GPU's; the caller may have been told
};

struct ReceiveMessage {
  uint64_t room_bytes = 0;
  uint64_t bytes = 0;  // at least, as far as packets have said; so many once its last packet is here
  uint32_t number = 0;
  uint32_t channel = 0;
  uint32_t received = 0;  // packets
  uint32_t total = 0;     // packets; 0 until the last one says so
  uint32_t wanted = 0;    // packets, as far as the sender has said
  uint32_t granted = 0;
  uint32_t held = 0;        // pages
  uint32_t moving = 0;      // pages
  uint32_t lent = 0;        // pages
  uint32_t eager = 0;       // packets whose eager credits are not free again
  uint32_t most_pages = 0;  // that may be lent: what its slot describes; 0: it is copied
  // Its pages that are held or lent, in the order in which they arrived: mostly that of their bytes, so that
  // one call copies what follows each other.
  uint32_t first_page = kNoObject, last_page = kNoObject;
  ReceiveState state = ReceiveState::kFree;
  bool is_copied = false;  // instead of lent, by choice or for want of pages
  bool is_short = false;   // all of it, one packet, came in a short page
  uint8_t rails = 0;       // that have carried some of it: a bit each
  // Of its grants; Grants' alone.
  bool is_wanting = false;  // more than it is granted
  uint8_t length_class = 0;
  uint8_t idle_audits = 0;  // without a packet, in a row
  bool is_granted = false;  // it is on the list of those that are audited
  bool is_doubted = false;  // its last grant brought nothing
  uint32_t audited = 0;     // packets that were here at the last audit
  enum class Told : uint8_t {
    kAll,
    kNot,
    kOnce
  } told = Told::kAll;  // of its grant: to be told once more, twice
  ListLink demand, audits;
  uint32_t next_told = kNoObject;  // in the peer's chain for that

  uint32_t outstanding() const { return granted > received ? granted - received : 0; }
};

struct DemandLink {
  static ListLink& of(ReceiveMessage& message) { return message.demand; }
};
struct AuditLink {
  static ListLink& of(ReceiveMessage& message) { return message.audits; }
};

}  // namespace verbena::protocol::datagram
