// The posted requests of a queue pair, in a ring with their gather lists and inline bytes.
#pragma once

#include <infiniband/verbs.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

namespace verbena::softverbs {

// The arguments of IBV_WR_BIND_MW.
struct BindRequest {
  uint64_t address;
  uint64_t length;
  uint32_t window;  // its previous key
  uint32_t region;  // its key
  uint32_t access;
  ibv_mw_type type;
};

// A posted work request without its gather list and inline bytes.
struct SendRequest {
  uint64_t wr_id;
  uint64_t number;     // counts the queue's requests
  uint64_t posted_ns;  // set if a fault plan delays requests
  ibv_wr_opcode opcode;
  uint32_t flags;      // IBV_SEND_*
  uint32_t immediate;  // or the key to invalidate
  uint32_t rkey;
  uint64_t remote_address;
  uint64_t compare_add;
  uint64_t swap;
  uint64_t length;
  uint32_t sge_count;
  uint32_t inline_bytes;
  ibv_ah* address_handle;  // datagrams
  uint32_t remote_qp;
  uint32_t remote_qkey;
  BindRequest bind;
};

// A ring of posted requests. Entries [executed, posted) wait or run. Earlier entries are free once a
// completion at or after them was polled; the user of the queue counts the free entries.
class SendQueue {
 public:
  void open(uint32_t capacity, uint32_t max_sge, uint32_t max_inline) {
    capacity_ = capacity;
    max_sge_ = max_sge;
    max_inline_ = max_inline;
    const size_t slots = std::bit_ceil(capacity);
    mask_ = slots - 1;
    requests_.resize(slots);
    sges_.resize(slots * max_sge);
    inline_.resize(slots * max_inline);
  }
  uint32_t capacity() const { return capacity_; }
  uint32_t max_sge() const { return max_sge_; }
  uint32_t max_inline() const { return max_inline_; }

  SendRequest& at(uint64_t number) { return requests_[number & mask_]; }
  ibv_sge* get_sges(const SendRequest& request) { return &sges_[(request.number & mask_) * max_sge_]; }
  uint8_t* get_inline(const SendRequest& request) { return &inline_[(request.number & mask_) * max_inline_]; }

  uint64_t posted = 0;
  uint64_t started = 0;
  uint64_t executed = 0;

 private:
  uint64_t mask_ = 0;
  uint32_t capacity_ = 0, max_sge_ = 0, max_inline_ = 0;
  std::vector<SendRequest> requests_;
  std::vector<ibv_sge> sges_;
  std::vector<uint8_t> inline_;
};

}  // namespace verbena::softverbs
