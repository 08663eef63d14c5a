// Domains, regions, queues and queue pairs of the fake.
#include <algorithm>
#include <cerrno>

#include "fake_objects.h"

#undef ibv_reg_mr

namespace verbena::verbs::fake {
namespace {

constexpr uint32_t kFirstNumber = 100;

template <typename T>
T* adopt(T* object, ibv_context* context) {
  object->context = context;
  ++to_fake(context)->children;
  ++hooks().record.live_objects;
  return object;
}

template <typename T>
int release(T* object) {
  --to_fake(object->context)->children;
  --hooks().record.live_objects;
  delete object;
  return 0;
}

ibv_mr* make_region(ibv_pd* domain, void* address, size_t length_bytes) {
  auto* region = adopt(new ibv_mr{}, domain->context);
  region->pd = domain;
  region->addr = address;
  region->length = length_bytes;
  region->lkey = hooks().script.next_local_key++;
  region->rkey = 2 * region->lkey;
  ++to_fake(domain)->children;
  return region;
}

Request record_request(const ibv_send_wr& request) {
  Request result{};
  result.wr_id = request.wr_id;
  result.opcode = request.opcode;
  result.flags = request.send_flags;
  result.imm = request.imm_data;
  result.remote = request.wr.rdma.remote_addr;
  result.remote_key = request.wr.rdma.rkey;
  if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    result.remote = request.wr.atomic.remote_addr;
    result.remote_key = request.wr.atomic.rkey;
    result.addend = request.wr.atomic.compare_add;
  }
  result.segments = request.num_sge;
  if (request.num_sge == 0) return result;
  result.local = request.sg_list->addr;
  result.local_key = request.sg_list->lkey;
  result.length = request.sg_list->length;
  return result;
}

}  // namespace

int poll_cq(ibv_cq*, int count, ibv_wc* entries) {
  Script& script = hooks().script;
  if (script.poll_result < 0) return script.poll_result;
  const int taken = std::min<int>(count, static_cast<int>(script.completions.size()));
  std::copy_n(script.completions.begin(), taken, entries);
  script.completions.erase(script.completions.begin(), script.completions.begin() + taken);
  return taken;
}

int post_send(ibv_qp*, ibv_send_wr* first, ibv_send_wr** rejected) {
  size_t length = 0;
  for (ibv_send_wr* request = first; request != nullptr; request = request->next, ++length) {
    if (static_cast<int>(length) == hooks().script.rejected_request) {
      *rejected = request;
      return ENOMEM;
    }
    hooks().record.requests.push_back(record_request(*request));
  }
  hooks().record.chain_lengths.push_back(length);
  return 0;
}

int post_recv(ibv_qp*, ibv_recv_wr* first, ibv_recv_wr** rejected) {
  return post_srq_recv(nullptr, first, rejected);
}

int post_srq_recv(ibv_srq*, ibv_recv_wr* first, ibv_recv_wr** rejected) {
  size_t length = 0;
  for (ibv_recv_wr* request = first; request != nullptr; request = request->next, ++length) {
    if (static_cast<int>(length) == hooks().script.rejected_request) {
      *rejected = request;
      return ENOMEM;
    }
    hooks().record.receives.push_back(*request);
    hooks().record.receive_addresses.push_back(request->sg_list->addr);
  }
  hooks().record.chain_lengths.push_back(length);
  return 0;
}

}  // namespace verbena::verbs::fake

using namespace verbena::verbs::fake;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  if (refuse()) return nullptr;
  auto* domain = new FakeDomain;
  domain->pd.context = context;
  ++to_fake(context)->children;
  ++hooks().record.live_objects;
  return &domain->pd;
}

int ibv_dealloc_pd(ibv_pd* domain) {
  if (to_fake(domain)->children != 0) {
    ++hooks().record.misuses;
    return EBUSY;
  }
  --to_fake(domain->context)->children;
  --hooks().record.live_objects;
  delete to_fake(domain);
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, size_t length_bytes, int access) {
  if (refuse()) return nullptr;
  hooks().record.last_access = static_cast<unsigned>(access);
  hooks().record.used_iova2 = false;
  return make_region(domain, address, length_bytes);
}

#ifndef FAKE_IS_OLD
ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, size_t length_bytes, uint64_t, unsigned access) {
  if (refuse()) return nullptr;
  hooks().record.last_access = access;
  hooks().record.used_iova2 = true;
  return make_region(domain, address, length_bytes);
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, uint64_t offset, size_t length_bytes, uint64_t address, int fd,
                          int access) {
  if (fd < 0) {
    errno = hooks().script.dmabuf_errno;
    return nullptr;
  }
  if (refuse()) return nullptr;
  hooks().record.last_access = static_cast<unsigned>(access);
  hooks().record.last_offset = offset;
  return make_region(domain, reinterpret_cast<void*>(address), length_bytes);
}
#endif

int ibv_dereg_mr(ibv_mr* region) {
  --to_fake(region->pd)->children;
  return release(region);
}

ibv_cq* ibv_create_cq(ibv_context* context, int depth, void*, ibv_comp_channel*, int) {
  if (refuse()) return nullptr;
  auto* queue = adopt(new ibv_cq{}, context);
  queue->cqe = depth;
  return queue;
}

int ibv_destroy_cq(ibv_cq* queue) {
  return release(queue);
}

#ifndef FAKE_WITHOUT_SRQ
ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr*) {
  if (refuse()) return nullptr;
  auto* queue = adopt(new ibv_srq{}, domain->context);
  queue->pd = domain;
  ++to_fake(domain)->children;
  return queue;
}
#endif

int ibv_destroy_srq(ibv_srq* queue) {
  --to_fake(queue->pd)->children;
  return release(queue);
}

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  static uint32_t next_number = kFirstNumber;
  if (refuse()) return nullptr;
  hooks().record.pair_attributes = *attributes;
  const Script& script = hooks().script;
  if (attributes->cap.max_inline_data > script.most_inline_bytes) {
    errno = EINVAL;
    if (script.refuses_more_inline) return nullptr;
    attributes->cap.max_inline_data = script.most_inline_bytes;
  }
  auto* fake = new FakePair;
  fake->ece_options = hooks().script.ece_options;
  ibv_qp* pair = adopt(&fake->pair, domain->context);
  pair->pd = domain;
  pair->qp_num = next_number++;
  ++to_fake(domain)->children;
  return pair;
}

int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  if (refuse()) return errno;
  if (hooks().script.failing_modify_errno != 0) return hooks().script.failing_modify_errno;
  hooks().record.modifications.push_back(*attributes);
  hooks().record.modification_masks.push_back(mask);
  pair->state = attributes->qp_state;
  return 0;
}

int ibv_destroy_qp(ibv_qp* pair) {
  --to_fake(pair->pd)->children;
  --to_fake(pair->context)->children;
  --hooks().record.live_objects;
  delete reinterpret_cast<FakePair*>(pair);
  return 0;
}

#ifndef FAKE_IS_OLD
int ibv_query_ece(ibv_qp* pair, ibv_ece* ece) {
  if (hooks().script.ece_vendor == 0) return EOPNOTSUPP;
  *ece = {hooks().script.ece_vendor, reinterpret_cast<FakePair*>(pair)->ece_options, 0};
  return 0;
}

// A device grants what it has of the request.
int ibv_set_ece(ibv_qp* pair, ibv_ece* ece) {
  hooks().record.ece_requests.push_back(*ece);
  if (hooks().script.set_ece_errno != 0) return hooks().script.set_ece_errno;
  reinterpret_cast<FakePair*>(pair)->ece_options = ece->options & hooks().script.ece_options;
  return 0;
}
#endif

const char* ibv_wc_status_str(ibv_wc_status) {
  return "fake status";
}

}  // extern "C"

// The older struct is the beginning of the newer one.
ibv_qp* verbena::verbs::fake::create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* attributes) {
  hooks().record.pair_mask = attributes->comp_mask;
  hooks().record.pair_operations = attributes->send_ops_flags;
  if (hooks().script.extended_pair_errno == 0)
    return ibv_create_qp(attributes->pd, reinterpret_cast<ibv_qp_init_attr*>(attributes));
  errno = std::max(hooks().script.extended_pair_errno, 0);
  return nullptr;
}
