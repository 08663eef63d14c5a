#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace verbena::softverbs_test {

// The verbs calls of these tests must be those of our library, not of an installed one.
void require_our_library();

struct NodeOptions {
  int device = 0;
  int cq_entries = 1024;
  bool with_channel = false;
};

// One opened device with a protection domain and a completion queue.
class Node {
 public:
  explicit Node(const NodeOptions& options = {});
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;

  // Exactly `count` completions within the deadline, or fewer.
  std::vector<ibv_wc> wait_completions(int count, int timeout_ms = 60000);
  ibv_wc wait_completion(int timeout_ms = 60000);
};

inline constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// Where a peer of its owner reads and writes.
struct RemoteMemory {
  uint64_t address;
  uint32_t rkey;

  RemoteMemory operator+(uint64_t offset) const { return {address + offset, rkey}; }
};

class Buffer {
 public:
  Buffer(Node& node, size_t bytes, int access = kAllAccess);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint8_t* data() { return memory_.data(); }
  size_t size() const { return memory_.size(); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_.data()); }
  ibv_mr* mr() const { return mr_; }
  RemoteMemory remote(uint64_t offset = 0) const { return {address() + offset, mr_->rkey}; }
  ibv_sge piece(uint64_t offset, size_t bytes) const {
    return {address() + offset, static_cast<uint32_t>(bytes), mr_ == nullptr ? 0 : mr_->lkey};
  }
  // The first 8 bytes.
  uint64_t word() const;
  void drop_mr();
  void fill(uint8_t seed);
  bool matches(uint8_t seed, size_t bytes) const;

 private:
  std::vector<uint8_t> memory_;
  ibv_mr* mr_;
};

struct QpOptions {
  ibv_qp_type type = IBV_QPT_RC;  // or IBV_QPT_UC
  uint32_t send_requests = 64, receive_requests = 64, sges = 4, inline_bytes = 256;
  bool signal_all = false;
  ibv_srq* srq = nullptr;
  uint8_t timeout = 14, retry_count = 7, rnr_retry = 7, min_rnr_timer = 1;
  int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
};

// What two queue pairs tell each other before they talk.
struct Address {
  uint32_t qp_number;
  ibv_gid gid;
};

class QueuePair {
 public:
  QueuePair(Node& node, const QpOptions& options = {});
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  ibv_qp* qp = nullptr;
  Node& node() { return node_; }
  Address address() const;
  void connect(const Address& peer);  // to RTS
  int to_init();
  int to_ready_to_receive(const Address& peer, ibv_mtu path_mtu = IBV_MTU_4096);
  int to_ready_to_send();
  int to_state(ibv_qp_state state);
  ibv_qp_state query_state();

  int post_receive(uint64_t wr_id, const Buffer& buffer, size_t offset, size_t bytes);
  int post_receive(uint64_t wr_id, ibv_sge piece);

 private:
  Node& node_;
  QpOptions options_;
};

// A send work request with up to a few pieces, filled step by step.
struct Send {
  ibv_send_wr request{};
  std::vector<ibv_sge> sges;

  Send(ibv_wr_opcode opcode, uint64_t wr_id, unsigned flags = IBV_SEND_SIGNALED);
  Send& from(const Buffer& buffer, size_t offset, size_t bytes);
  Send& from(ibv_sge piece);
  Send& to(uint64_t remote_address, uint32_t rkey);
  Send& to(const RemoteMemory& remote) { return to(remote.address, remote.rkey); }
  Send& with_immediate(uint32_t value);
  // What a fetch-and-add adds, and where.
  Send& add(uint64_t operand, const RemoteMemory& remote);
  int post(QueuePair& queue_pair);
  // Posts it, and waits for the next completion of the queue pair's node, which is its own.
  ibv_wc_status run(QueuePair& queue_pair);
};

// Posts requests in one call.
int post_together(const QueuePair& pair, const std::vector<Send*>& sends);
int post_together(const QueuePair& pair, std::vector<Send>& sends);

int post_shared(ibv_srq* srq, uint64_t wr_id, const Buffer& buffer, size_t offset, size_t bytes);

// A forked process that runs `body` with one end of a socket pair; the test has the other end. Fork before
// opening a device. Its failed expectations make the test fail.
class Child {
 public:
  explicit Child(const std::function<void(int socket)>& body);
  ~Child();
  int socket() const { return socket_; }
  int pid() const { return pid_; }
  void kill();
  void join();  // expects success

 private:
  int socket_;
  int pid_;
  bool is_gone_ = false;
};

void send_bytes(int socket, const void* data, size_t bytes);
template <typename T>
void tell(int socket, const T& value) {
  send_bytes(socket, &value, sizeof(value));
}
void receive_bytes(int socket, void* data, size_t bytes);
template <typename T>
T hear(int socket) {
  T value{};
  receive_bytes(socket, &value, sizeof(value));
  return value;
}

// Exchanges addresses with the process at the other end of the socket, and connects.
void meet(int socket, QueuePair& pair);
// The same within this process.
void meet(QueuePair& one, QueuePair& other);

// A node whose queue pair is connected to the one at the other end of the socket.
struct Connected {
  explicit Connected(int socket) { meet(socket, pair); }

  Node node;
  QueuePair pair{node};
};

// The same with memory.
struct ConnectedMemory {
  ConnectedMemory(int socket, size_t bytes) : memory(node, bytes) { meet(socket, pair); }

  Node node;
  Buffer memory;
  QueuePair pair{node};
};

// A node whose two queue pairs are connected to each other.
struct ConnectedPair {
  ConnectedPair() { meet(first, second); }

  Node node;
  QueuePair first{node}, second{node};
};

// Two nodes of this process on one rail, each with memory; connect() gives them queue pairs, anew each time.
struct TwoNodes {
  explicit TwoNodes(size_t bytes, int rail = 0)
      : left_node({.device = rail}),
        right_node({.device = rail}),
        source(left_node, bytes),
        target(right_node, bytes) {}
  void connect(const QpOptions& options = {}) {
    left = std::make_unique<QueuePair>(left_node, options);
    right = std::make_unique<QueuePair>(right_node, options);
    meet(*left, *right);
  }
  Send write(uint64_t wr_id, size_t bytes = 64, unsigned flags = IBV_SEND_SIGNALED) {
    Send send(IBV_WR_RDMA_WRITE, wr_id, flags);
    send.from(source, 0, bytes).to(target.address(), target.mr()->rkey);
    return send;
  }

  Node left_node, right_node;
  Buffer source, target;
  std::unique_ptr<QueuePair> left, right;
};

// How often an attack is made: `usual`, or as often as a whole attack takes, with WHOLE_ATTACKS=1, and says
// so.
int count_attacks(const char* what, int usual, int whole);

// Where the tables of the process in this slot are mapped in this one; null: they are not.
uint8_t* find_tables(uint32_t slot);

}  // namespace verbena::softverbs_test
