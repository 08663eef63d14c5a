#include "fixture.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "softverbs/shared/shared_layout.h"

#undef ibv_reg_mr

namespace verbena::softverbs_test {

void require_our_library() {
  Dl_info info{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&ibv_get_device_list), &info), 0);
  ASSERT_NE(std::string(info.dli_fname).find("softverbs/libibverbs.so"), std::string::npos) << info.dli_fname;
}

Node::Node(const NodeOptions& options) {
  require_our_library();
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  EXPECT_GT(count, options.device) << "is SOFTVERBS_DEVICES set?";
  context = ibv_open_device(devices[options.device]);
  ibv_free_device_list(devices);
  EXPECT_NE(context, nullptr);
  pd = ibv_alloc_pd(context);
  if (options.with_channel) channel = ibv_create_comp_channel(context);
  cq = ibv_create_cq(context, options.cq_entries, this, channel, 0);
  EXPECT_NE(cq, nullptr);
}

Node::~Node() {
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  if (channel != nullptr) {
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
  }
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

std::vector<ibv_wc> Node::wait_completions(int count, int timeout_ms) {
  std::vector<ibv_wc> completions;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (static_cast<int>(completions.size()) < count && std::chrono::steady_clock::now() < deadline) {
    ibv_wc wc{};
    const int polled = ibv_poll_cq(cq, 1, &wc);
    EXPECT_GE(polled, 0);
    if (polled == 1) completions.push_back(wc);
  }
  EXPECT_EQ(static_cast<int>(completions.size()), count) << "completions within " << timeout_ms << " ms";
  return completions;
}

ibv_wc Node::wait_completion(int timeout_ms) {
  const auto completions = wait_completions(1, timeout_ms);
  return completions.empty() ? ibv_wc{} : completions[0];
}

Buffer::Buffer(Node& node, size_t bytes, int access) : memory_(bytes) {
  mr_ = ibv_reg_mr(node.pd, memory_.data(), bytes, access);
  EXPECT_NE(mr_, nullptr);
}

Buffer::~Buffer() {
  drop_mr();
}

uint64_t Buffer::word() const {
  uint64_t word = 0;
  memcpy(&word, memory_.data(), sizeof(word));
  return word;
}

void Buffer::drop_mr() {
  if (mr_ != nullptr) {
    EXPECT_EQ(ibv_dereg_mr(mr_), 0);
  }
  mr_ = nullptr;
}

namespace {
uint8_t make_byte(uint8_t seed, size_t index) {
  return static_cast<uint8_t>(seed + index * 7 + (index >> 8) * 13);
}
}  // namespace

void Buffer::fill(uint8_t seed) {
  for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = make_byte(seed, i);
}

bool Buffer::matches(uint8_t seed, size_t bytes) const {
  for (size_t i = 0; i < bytes; ++i) {
    if (memory_[i] != make_byte(seed, i)) return false;
  }
  return true;
}

QueuePair::QueuePair(Node& node, const QpOptions& options) : node_(node), options_(options) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = node.cq;
  init.srq = options.srq;
  init.cap = {options.send_requests, options.receive_requests, options.sges, options.sges,
              options.inline_bytes};
  init.qp_type = options.type;
  init.sq_sig_all = options.signal_all ? 1 : 0;
  qp = ibv_create_qp(node.pd, &init);
  EXPECT_NE(qp, nullptr);
}

QueuePair::~QueuePair() {
  if (qp != nullptr) {
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
  }
}

Address QueuePair::address() const {
  Address address{qp->qp_num, {}};
  EXPECT_EQ(ibv_query_gid(node_.context, 1, 1, &address.gid), 0);
  return address;
}

int QueuePair::to_init() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qp_access_flags = static_cast<unsigned>(options_.access);
  return ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int QueuePair::to_ready_to_receive(const Address& peer, ibv_mtu path_mtu) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = path_mtu;
  attributes.dest_qp_num = peer.qp_number;
  attributes.max_dest_rd_atomic = 16;
  attributes.min_rnr_timer = options_.min_rnr_timer;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.grh.dgid = peer.gid;
  attributes.ah_attr.grh.sgid_index = 1;
  attributes.ah_attr.grh.hop_limit = 64;
  attributes.ah_attr.port_num = 1;
  const int reliable = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  return ibv_modify_qp(qp, &attributes,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           (options_.type == IBV_QPT_RC ? reliable : 0));
}

int QueuePair::to_ready_to_send() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = options_.timeout;
  attributes.retry_cnt = options_.retry_count;
  attributes.rnr_retry = options_.rnr_retry;
  attributes.max_rd_atomic = 16;
  const int reliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return ibv_modify_qp(qp, &attributes,
                       IBV_QP_STATE | IBV_QP_SQ_PSN | (options_.type == IBV_QPT_RC ? reliable : 0));
}

void QueuePair::connect(const Address& peer) {
  EXPECT_EQ(to_init(), 0);
  EXPECT_EQ(to_ready_to_receive(peer), 0);
  EXPECT_EQ(to_ready_to_send(), 0);
}

int QueuePair::to_state(ibv_qp_state state) {
  ibv_qp_attr attributes{};
  attributes.qp_state = state;
  return ibv_modify_qp(qp, &attributes, IBV_QP_STATE);
}

ibv_qp_state QueuePair::query_state() {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  EXPECT_EQ(ibv_query_qp(qp, &attributes, IBV_QP_STATE, &init), 0);
  return attributes.qp_state;
}

int QueuePair::post_receive(uint64_t wr_id, const Buffer& buffer, size_t offset, size_t bytes) {
  return post_receive(wr_id, buffer.piece(offset, bytes));
}

int QueuePair::post_receive(uint64_t wr_id, ibv_sge piece) {
  ibv_recv_wr request{wr_id, nullptr, &piece, 1}, *bad = nullptr;
  return ibv_post_recv(qp, &request, &bad);
}

Send::Send(ibv_wr_opcode opcode, uint64_t wr_id, unsigned flags) {
  request.opcode = opcode;
  request.wr_id = wr_id;
  request.send_flags = flags;
}

Send& Send::from(const Buffer& buffer, size_t offset, size_t bytes) {
  return from(buffer.piece(offset, bytes));
}

Send& Send::from(ibv_sge piece) {
  sges.push_back(piece);
  return *this;
}

Send& Send::to(uint64_t remote_address, uint32_t rkey) {
  request.wr.rdma.remote_addr = remote_address;
  request.wr.rdma.rkey = rkey;
  return *this;
}

Send& Send::with_immediate(uint32_t value) {
  request.imm_data = value;
  return *this;
}

Send& Send::add(uint64_t operand, const RemoteMemory& remote) {
  request.wr.atomic = {remote.address, operand, 0, remote.rkey};
  return *this;
}

int Send::post(QueuePair& queue_pair) {
  return post_together(queue_pair, {this});
}

ibv_wc_status Send::run(QueuePair& queue_pair) {
  const int error = post(queue_pair);
  EXPECT_EQ(error, 0);
  return error == 0 ? queue_pair.node().wait_completion().status : IBV_WC_GENERAL_ERR;
}

int post_together(const QueuePair& pair, const std::vector<Send*>& sends) {
  for (size_t i = 0; i < sends.size(); ++i) {
    ibv_send_wr& request = sends[i]->request;
    request.sg_list = sends[i]->sges.data();
    request.num_sge = static_cast<int>(sends[i]->sges.size());
    request.next = i + 1 < sends.size() ? &sends[i + 1]->request : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(pair.qp, &sends[0]->request, &bad);
  if (error != 0 && sends.size() == 1) {
    EXPECT_EQ(bad, &sends[0]->request);
  }
  return error;
}

int post_together(const QueuePair& pair, std::vector<Send>& sends) {
  std::vector<Send*> all;
  for (Send& send : sends) all.push_back(&send);
  return post_together(pair, all);
}

int post_shared(ibv_srq* srq, uint64_t wr_id, const Buffer& buffer, size_t offset, size_t bytes) {
  ibv_sge piece = buffer.piece(offset, bytes);
  ibv_recv_wr request{wr_id, nullptr, &piece, 1}, *bad = nullptr;
  return ibv_post_srq_recv(srq, &request, &bad);
}

Child::Child(const std::function<void(int socket)>& body) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  pid_ = fork();
  if (pid_ == 0) {
    alarm(100);  // never outlive a test that hangs
    close(ends[0]);
    body(ends[1]);
    fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  close(ends[1]);
  socket_ = ends[0];
}

Child::~Child() {
  if (!is_gone_) join();
  close(socket_);
}

void Child::kill() {
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  is_gone_ = true;
}

void Child::join() {
  int status = 0;
  waitpid(pid_, &status, 0);
  is_gone_ = true;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child process failed, status " << status;
}

int count_attacks(const char* what, int usual, int whole) {
  if (getenv("WHOLE_ATTACKS") == nullptr) return usual;
  printf("attack: %d %s\n", whole, what);
  fflush(stdout);  // before a child would write it too
  return whole;
}

void send_bytes(int socket, const void* data, size_t bytes) {
  ASSERT_EQ(send(socket, data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

void receive_bytes(int socket, void* data, size_t bytes) {
  pollfd ready{socket, POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 30000), 1) << "the other process said nothing";
  ASSERT_EQ(recv(socket, data, bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
}

void meet(int socket, QueuePair& pair) {
  tell(socket, pair.address());
  pair.connect(hear<Address>(socket));
  tell(socket, true);
  hear<bool>(socket);
}

void meet(QueuePair& one, QueuePair& other) {
  one.connect(other.address());
  other.connect(one.address());
}

uint8_t* find_tables(uint32_t slot) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const bool is_theirs =
        line.find("softverbs") != std::string::npos && line.find(".so") == std::string::npos;
    if (!is_theirs || line.find("/processes") != std::string::npos) continue;
    auto* tables = reinterpret_cast<uint8_t*>(std::stoull(line, nullptr, 16));
    if (line.find(" rw-s ") == std::string::npos) continue;
    if (reinterpret_cast<softverbs::SegmentHeader*>(tables)->slot == slot) return tables;
  }
  return nullptr;
}

}  // namespace verbena::softverbs_test
