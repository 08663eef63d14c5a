// The functions of libhwloc.so.15 that topology uses, found at run time. Without hwloc the plugin works, but
// does not know any distances. Only for use in topology.
#pragma once

#include <hwloc.h>

namespace verbena::topology {

#define VERBENA_HWLOC_FUNCTIONS(X) \
  X(topology_init)                 \
  X(topology_destroy)              \
  X(topology_set_xmlbuffer)        \
  X(topology_set_io_types_filter)  \
  X(topology_set_components)       \
  X(topology_load)                 \
  X(get_obj_by_depth)              \
  X(get_cpubind)                   \
  X(set_cpubind)                   \
  X(bitmap_alloc)                  \
  X(bitmap_free)                   \
  X(bitmap_and)                    \
  X(bitmap_iszero)                 \
  X(bitmap_weight)                 \
  X(bitmap_first)

struct HwlocApi {
#define VERBENA_MEMBER(name) decltype(&::hwloc_##name) name = nullptr;
  VERBENA_HWLOC_FUNCTIONS(VERBENA_MEMBER)
#undef VERBENA_MEMBER
};

// Returns the functions, loaded on the first call and kept for the life of the plugin; null if no suitable
// library is installed.
const HwlocApi* find_hwloc();

}  // namespace verbena::topology
