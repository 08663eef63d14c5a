// The hook into the fake libibverbs: a test opens the same file as the code under test and writes here what
// the fake shall show, or reads what was asked of it. Devices named in the script exist only here; no data
// moves.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace verbena::verbs::fake {

struct Gid {
  uint8_t bytes[16];
  uint32_t type;  // enum ibv_gid_type
};

struct Port {
  ibv_port_state state = IBV_PORT_ACTIVE;
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_4096;
  uint8_t width = 2, speed = 64;  // 4 x HDR
  uint32_t extended_speed = 0;    // what newer libraries fill, from XDR on
  uint64_t effective_speed = 0;   // in units of 100 Mb/s; 0: ibv_query_port_speed fails
  uint8_t flags = 0;              // IBV_QPF_GRH_REQUIRED
  uint16_t partition_key = 0xffff;
  std::vector<uint16_t> further_partition_keys;  // behind that one
  std::vector<Gid> gids;
};

struct Device {
  std::string name;
  uint64_t guid = 1;
  uint32_t vendor_id = 0x02c9;
  ibv_transport_type transport = IBV_TRANSPORT_IB;
  std::vector<Port> ports;
  int open_errno = 0;  // not 0: ibv_open_device fails
};

struct Script {
  std::vector<Device> devices;              // open ones too show what is written here later
  int list_errno = 0;                       // not 0: ibv_get_device_list fails
  const char* no_gpu = nullptr;             // what softverbs says of GPU memory
  const char* wait = "";                    // and of requests that do not end
  int dmabuf_errno = EBADF;                 // what ibv_reg_dmabuf_mr says to a bad descriptor
  uint32_t most_inline_bytes = UINT32_MAX;  // of a queue pair: what it grants of more, unless
  bool refuses_more_inline = false;         // it refuses to be made then
  int extended_pair_errno = ENOSYS;         // what ibv_create_qp_ex says; 0: it makes one
  // The n-th call that can fail (counted from 1 since the last reset) fails; 0: none.
  int failing_call = 0, failing_errno = ENOMEM;
  int failing_modify_errno = 0;              // every ibv_modify_qp fails
  uint32_t ece_vendor = 0, ece_options = 0;  // what a queue pair has; vendor 0: no ECE
  int set_ece_errno = 0;

  uint32_t next_local_key = 11;  // of a region; its remote key is twice that

  int poll_result = 0;              // negative: ibv_poll_cq fails
  std::vector<ibv_wc> completions;  // the next ones that ibv_poll_cq hands out
  int rejected_request = -1;        // index within a chain of the first request that a post refuses; -1 none
};

struct Request {  // what was posted, field by field
  uint64_t wr_id, remote, local;
  ibv_wr_opcode opcode;
  unsigned flags;
  uint32_t imm, remote_key, local_key, length;
  uint64_t addend;
  int segments;
};

struct Record {
  int fallible_calls = 0;
  int live_objects = 0;  // contexts, lists, domains, regions, queues
  int misuses = 0;       // something destroyed while another object still needed it
  int fork_inits = 0;
  unsigned last_access = 0;  // of a registration
  bool used_iova2 = false;
  uint64_t last_offset = 0;  // of a dma-buf registration
  std::vector<Request> requests;
  std::vector<size_t> chain_lengths;  // of each post
  std::vector<ibv_recv_wr> receives;
  std::vector<uint64_t> receive_addresses;
  std::vector<ibv_qp_attr> modifications;
  std::vector<int> modification_masks;
  ibv_qp_init_attr pair_attributes{};
  uint32_t pair_mask = 0;  // of ibv_create_qp_ex
  uint64_t pair_operations = 0;
  std::vector<ibv_ece> ece_requests;
  std::atomic<int> acknowledged_events = 0;
  std::atomic<int> event_reads = 0;  // calls of ibv_get_async_event
};

struct Hooks {
  Script script;
  Record record;
  // To every open context of that device. `element`: the queue or pair that it is about; null: the port.
  void (*raise)(const char* device_name, ibv_event_type type, int port_number, void* element);
  // From now on reading an event of that device fails, as after a hot unplug.
  void (*break_events)(const char* device_name);
};

// Exported by the fake under this name.
using GetHooks = Hooks* (*)();
inline constexpr char kGetHooks[] = "fake_ibverbs_hooks";

}  // namespace verbena::verbs::fake
