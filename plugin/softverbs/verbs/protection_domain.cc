#include <cerrno>
#include <map>
#include <mutex>

#include "softverbs/engine/objects.h"
#include "softverbs/verbs/extended_verbs.h"

namespace verbena::softverbs {
namespace {

struct ThreadDomain {
  ibv_td base{};
  std::atomic<uint32_t> users{0};
};

// The domains that ibv_alloc_pd made, by the handle with which they can be imported.
struct DomainTable {
  std::mutex mutex;
  std::map<uint32_t, Pd*> domains;
};
DomainTable& get_domains() {
  static auto* table = new DomainTable;
  return *table;
}

std::atomic<uint32_t>* get_thread_users(ibv_td* domain) {
  return domain == nullptr ? nullptr : &reinterpret_cast<ThreadDomain*>(domain)->users;
}

// Makes an alias of a domain: objects of both may be used together.
ibv_pd* make_alias(ibv_context* context, Pd& origin, std::atomic<uint32_t>* thread_users) try {
  auto* pd = new Pd;
  pd->id = origin.id;
  pd->origin = &origin;
  pd->thread_users = thread_users;
  pd->base.context = context;
  pd->base.handle = origin.base.handle;
  origin.users.fetch_add(1);
  if (thread_users != nullptr) thread_users->fetch_add(1);
  return &pd->base;
}
SOFTVERBS_CATCH

void drop_alias(Pd& pd) {
  pd.origin->users.fetch_sub(1);
  if (pd.thread_users != nullptr) pd.thread_users->fetch_sub(1);
  delete &pd;
}

}  // namespace

ibv_td* allocate_thread_domain(ibv_context* context, ibv_td_init_attr* init) try {
  if (init->comp_mask != 0) return fail_with<ibv_td>(EINVAL);
  auto* domain = new ThreadDomain;
  domain->base.context = context;
  return &domain->base;
}
SOFTVERBS_CATCH

int deallocate_thread_domain(ibv_td* base) {
  auto* domain = reinterpret_cast<ThreadDomain*>(base);
  if (domain->users.load() != 0) return EBUSY;
  delete domain;
  return 0;
}

// Never calls the caller's allocators: they are for buffers that a device reads, and this library keeps them
// in shared memory.
ibv_pd* allocate_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* init) {
  constexpr uint32_t kKnown = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  if (init->pd == nullptr || (init->comp_mask & ~kKnown) != 0) return fail_with<ibv_pd>(EINVAL);
  return make_alias(context, get_pd(init->pd), get_thread_users(init->td));
}

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

SOFTVERBS_API ibv_pd* ibv_alloc_pd(ibv_context* context) try {
  auto* pd = new Pd;
  pd->id = Process::get()->next_pd.fetch_add(1);
  pd->base.context = context;
  pd->base.handle = pd->id;
  std::lock_guard lock(get_domains().mutex);
  get_domains().domains[pd->id] = pd;
  return &pd->base;
}
SOFTVERBS_CATCH

SOFTVERBS_API int ibv_dealloc_pd(ibv_pd* base) {
  Pd& pd = get_pd(base);
  std::lock_guard lock(get_domains().mutex);
  if (pd.users.load() != 0) return EBUSY;
  if (pd.origin != nullptr) {
    drop_alias(pd);
    return 0;
  }
  get_domains().domains.erase(pd.id);
  delete &pd;
  return 0;
}

// Works only within the process, like every import in this library.
SOFTVERBS_API ibv_pd* ibv_import_pd(ibv_context* context, uint32_t handle) {
  std::lock_guard lock(get_domains().mutex);
  const auto known = get_domains().domains.find(handle);
  if (known == get_domains().domains.end()) return fail_with<ibv_pd>(ENOENT);
  return make_alias(context, *known->second, nullptr);
}

SOFTVERBS_API void ibv_unimport_pd(ibv_pd* pd) {
  drop_alias(get_pd(pd));
}
