#include "softverbs/verbs/extended_verbs.h"

#include <algorithm>
#include <cerrno>

#include "softverbs/engine/queue_pair.h"
#include "softverbs/engine/queue_pair_state.h"

namespace verbena::softverbs {
namespace {

Qp& get_qp(ibv_qp_ex* qp) {
  return *reinterpret_cast<Qp*>(qp);
}

// Requests between wr_start and wr_complete are built like those of ibv_post_send, and posted at the end. The
// queue pair's mutex is held from start to end.
ExtendedPost& add(ibv_qp_ex* base, ibv_wr_opcode opcode) {
  Qp& qp = get_qp(base);
  if (qp.extended_count == qp.extended_posts.size()) qp.extended_posts.emplace_back();
  ExtendedPost& post = qp.extended_posts[qp.extended_count++];
  post.request = {};
  post.request.wr_id = base->wr_id;
  post.request.send_flags = base->wr_flags;
  post.request.opcode = opcode;
  post.sges.clear();
  post.inline_bytes.clear();
  return post;
}

ExtendedPost& get_latest(ibv_qp_ex* base) {
  Qp& qp = get_qp(base);
  return qp.extended_posts[qp.extended_count - 1];
}

void add_inline(ExtendedPost& post, const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  post.inline_bytes.insert(post.inline_bytes.end(), from, from + bytes);
}

void add_remote(ibv_qp_ex* qp, ibv_wr_opcode opcode, uint32_t rkey, uint64_t address, __be32 immediate = 0) {
  ibv_send_wr& request = add(qp, opcode).request;
  request.wr.rdma.rkey = rkey;
  request.wr.rdma.remote_addr = address;
  request.imm_data = immediate;
}

void add_atomic(ibv_qp_ex* qp, ibv_wr_opcode opcode, uint32_t rkey, uint64_t address, uint64_t first,
                uint64_t second) {
  ibv_send_wr& request = add(qp, opcode).request;
  request.wr.atomic = {address, first, second, rkey};
}

// Copies the eight bytes, because the caller may reuse them after this call.
void add_atomic_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, const void* value) {
  add_remote(qp, IBV_WR_ATOMIC_WRITE, rkey, address);
  add_inline(get_latest(qp), value, sizeof(uint64_t));
}

void add_bind(ibv_qp_ex* qp, ibv_mw* window, uint32_t rkey, const ibv_mw_bind_info* info) {
  add(qp, IBV_WR_BIND_MW).request.bind_mw = {window, rkey, *info};
}

void start(ibv_qp_ex* base) {
  Qp& qp = get_qp(base);
  qp.mutex.lock();
  qp.extended_count = 0;
}

int complete_posts(ibv_qp_ex* base) {
  Qp& qp = get_qp(base);
  std::unique_lock lock(qp.mutex, std::adopt_lock);
  int error = check_can_post(qp);
  const uint64_t before = qp.send_queue.posted;
  for (size_t i = 0; error == 0 && i < qp.extended_count; ++i) {
    ExtendedPost& post = qp.extended_posts[i];
    if (!post.inline_bytes.empty()) {
      post.request.send_flags |= IBV_SEND_INLINE;
      post.sges.assign(1, {reinterpret_cast<uint64_t>(post.inline_bytes.data()),
                           static_cast<uint32_t>(post.inline_bytes.size()), 0});
    }
    post.request.sg_list = post.sges.data();
    post.request.num_sge = static_cast<int>(post.sges.size());
    error = append(qp, post.request);
  }
  if (error != 0) qp.send_queue.posted = before;  // all or nothing
  run_send_queue(qp, Runner::kPoster, lock);
  return error;
}

void abort_posts(ibv_qp_ex* base) {
  get_qp(base).mutex.unlock();
}

void set_sge(ibv_qp_ex* qp, uint32_t lkey, uint64_t address, uint32_t length) {
  get_latest(qp).sges.assign(1, {address, length, lkey});
}

void set_sge_list(ibv_qp_ex* qp, size_t count, const ibv_sge* list) {
  get_latest(qp).sges.assign(list, list + count);
}

void set_inline_data(ibv_qp_ex* qp, void* data, size_t bytes) {
  add_inline(get_latest(qp), data, bytes);
}

void set_inline_data_list(ibv_qp_ex* qp, size_t count, const ibv_data_buf* list) {
  for (size_t i = 0; i < count; ++i) add_inline(get_latest(qp), list[i].addr, list[i].length);
}

void set_datagram_address(ibv_qp_ex* qp, ibv_ah* handle, uint32_t number, uint32_t qkey) {
  get_latest(qp).request.wr.ud = {handle, number, qkey};
}

constexpr uint64_t kSends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
constexpr uint64_t kWrites = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
constexpr uint64_t kReliableOnly = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE |
                                   IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV |
                                   IBV_QP_EX_WITH_BIND_MW;

uint64_t get_allowed_posts(ibv_qp_type type) {
  switch (type) {
    case IBV_QPT_RC:
      return kSends | kWrites | kReliableOnly;
    case IBV_QPT_UC:
      return kSends | kWrites;
    default:
      return kSends;
  }
}

}  // namespace

void install_extended_posts(Qp& qp) {
  qp.has_extended_posts = true;
  ibv_qp_ex& ex = qp.extended;
  ex.wr_start = start;
  ex.wr_complete = complete_posts;
  ex.wr_abort = abort_posts;
  ex.wr_send = [](ibv_qp_ex* base) { add(base, IBV_WR_SEND); };
  ex.wr_send_imm = [](ibv_qp_ex* base, __be32 immediate) {
    add(base, IBV_WR_SEND_WITH_IMM).request.imm_data = immediate;
  };
  ex.wr_rdma_write = [](ibv_qp_ex* base, uint32_t rkey, uint64_t address) {
    add_remote(base, IBV_WR_RDMA_WRITE, rkey, address);
  };
  ex.wr_rdma_write_imm = [](ibv_qp_ex* base, uint32_t rkey, uint64_t address, __be32 immediate) {
    add_remote(base, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address, immediate);
  };
  ex.wr_rdma_read = [](ibv_qp_ex* base, uint32_t rkey, uint64_t address) {
    add_remote(base, IBV_WR_RDMA_READ, rkey, address);
  };
  ex.wr_atomic_cmp_swp = [](ibv_qp_ex* base, uint32_t rkey, uint64_t address, uint64_t compare,
                            uint64_t swap) {
    add_atomic(base, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address, compare, swap);
  };
  ex.wr_atomic_fetch_add = [](ibv_qp_ex* base, uint32_t rkey, uint64_t address, uint64_t summand) {
    add_atomic(base, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address, summand, 0);
  };
  ex.wr_send_inv = [](ibv_qp_ex* base, uint32_t key) {
    add(base, IBV_WR_SEND_WITH_INV).request.invalidate_rkey = key;
  };
  ex.wr_local_inv = [](ibv_qp_ex* base, uint32_t key) {
    add(base, IBV_WR_LOCAL_INV).request.invalidate_rkey = key;
  };
  ex.wr_bind_mw = add_bind;
  ex.wr_atomic_write = add_atomic_write;
  ex.wr_set_sge = set_sge;
  ex.wr_set_sge_list = set_sge_list;
  ex.wr_set_inline_data = set_inline_data;
  ex.wr_set_inline_data_list = set_inline_data_list;
  ex.wr_set_ud_addr = set_datagram_address;
}

ibv_qp* create_qp_extended(ibv_context*, ibv_qp_init_attr_ex* init) {
  constexpr uint32_t kKnown =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  if ((init->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) return fail_with<ibv_qp>(EINVAL);
  if ((init->comp_mask & ~kKnown) != 0) return fail_with<ibv_qp>(EOPNOTSUPP);
  if ((init->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && init->create_flags != 0)
    return fail_with<ibv_qp>(EOPNOTSUPP);
  const bool has_posts = (init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if (has_posts && (init->send_ops_flags & ~get_allowed_posts(init->qp_type)) != 0)
    return fail_with<ibv_qp>(EOPNOTSUPP);
  constexpr uint32_t kWordBytes = sizeof(uint64_t);
  if (has_posts && (init->send_ops_flags & IBV_QP_EX_WITH_ATOMIC_WRITE) != 0)
    init->cap.max_inline_data = std::max(init->cap.max_inline_data, kWordBytes);
  // The newer struct begins with the members of the older one.
  auto& basic = *reinterpret_cast<ibv_qp_init_attr*>(init);
  ibv_qp* qp = create_qp(init->pd, &basic);
  if (qp != nullptr && has_posts) install_extended_posts(softverbs::get_qp(qp));
  return qp;
}

}  // namespace verbena::softverbs
