#include <cerrno>
#include <cstring>

#include "softverbs/engine/objects.h"
#include "softverbs/shared/profile.h"
#include "softverbs/wire/wire.h"

using namespace verbena::softverbs;

SOFTVERBS_API ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attributes) try {
  // On RoCE every address is a GID.
  const bool is_valid =
      attributes->is_global != 0 && attributes->port_num == kPort && attributes->grh.sgid_index < kGidCount;
  if (!is_valid) return fail_with<ibv_ah>(EINVAL);
  if (get_context(pd->context).is_dead.load()) return fail_with<ibv_ah>(EIO);
  auto* handle = new Ah;
  std::atomic<uint32_t>& count = get_context(pd->context).device->address_handles;
  if (count.fetch_add(1) >= get_profile().max_address_handles) {
    count.fetch_sub(1);
    delete handle;
    return fail_with<ibv_ah>(ENOMEM);
  }
  handle->base.context = pd->context;
  handle->base.pd = pd;
  handle->attributes = *attributes;
  handle->is_local =
      is_local_gid(attributes->grh.dgid) && !(wire::get_wire() != nullptr && get_config().force_wire);
  get_pd(pd).users.fetch_add(1);
  return &handle->base;
}
SOFTVERBS_CATCH

SOFTVERBS_API int ibv_destroy_ah(ibv_ah* base) {
  get_context(base->context).device->address_handles.fetch_sub(1);
  get_pd(base->pd).users.fetch_sub(1);
  delete reinterpret_cast<Ah*>(base);
  return 0;
}

// The address of a datagram's sender: the datagram's header names both ends.
SOFTVERBS_API int ibv_init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* wc, ibv_grh* header,
                                      ibv_ah_attr* attributes) {
  if (port != kPort || (wc->wc_flags & IBV_WC_GRH) == 0) return EINVAL;
  memset(attributes, 0, sizeof(*attributes));
  attributes->is_global = 1;
  attributes->port_num = port;
  attributes->grh.dgid = header->sgid;
  attributes->grh.hop_limit = 64;
  for (int index = 0; index < kGidCount; ++index) {
    const ibv_gid own = get_gid(get_context(context).device->index, index);
    if (memcmp(&own, &header->dgid, sizeof(own)) == 0)
      attributes->grh.sgid_index = static_cast<uint8_t>(index);
  }
  return 0;
}

SOFTVERBS_API ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* header, uint8_t port) {
  ibv_ah_attr attributes{};
  const int error = ibv_init_ah_from_wc(pd->context, port, wc, header, &attributes);
  return error == 0 ? ibv_create_ah(pd, &attributes) : fail_with<ibv_ah>(error);
}
