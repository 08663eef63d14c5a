// libibverbs, opened at run time. Only for use in plugin/verbs. <infiniband/verbs.h> has inline functions and
// macros that would bind to the library at link time (ibv_query_port, ibv_reg_mr, ...), so every call goes
// through this class.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <memory>
#include <string>

#include "base/status.h"

namespace verbena::verbs {

// Returns the name of the device, for log lines of objects that only have its context.
inline const char* name_device(const ibv_context* context) {
  return context != nullptr && context->device != nullptr ? context->device->name : "(unnamed)";
}
// Returns advice for a log line when a queue or a registration was rejected, or an empty string.
inline const char* hint_at_memory(int errno_value) {
  return errno_value == ENOMEM ? ", probably because the limit of locked memory is too low; raise `ulimit -l`"
                               : "";
}

// The exported functions, without the prefix ibv_. poll_cq and the post_* functions are not listed, because
// the inline versions of the header call them through ibv_context::ops and need no symbol.
#define VERBENA_REQUIRED_VERBS(X) \
  X(get_device_list)              \
  X(free_device_list)             \
  X(get_device_name)              \
  X(open_device)                  \
  X(close_device)                 \
  X(query_device)                 \
  X(query_port)                   \
  X(query_gid)                    \
  X(alloc_pd)                     \
  X(dealloc_pd)                   \
  X(reg_mr)                       \
  X(dereg_mr)                     \
  X(create_cq)                    \
  X(destroy_cq)                   \
  X(create_srq)                   \
  X(destroy_srq)                  \
  X(create_qp)                    \
  X(modify_qp)                    \
  X(destroy_qp)                   \
  X(get_async_event)              \
  X(ack_async_event)              \
  X(event_type_str)               \
  X(wc_status_str)

// Null if the library is older than the function.
#define VERBENA_OPTIONAL_VERBS(X) \
  X(fork_init)                    \
  X(reg_mr_iova2)                 \
  X(reg_dmabuf_mr)                \
  X(query_pkey)                   \
  X(query_qp)                     \
  X(query_ece)                    \
  X(set_ece)                      \
  X(create_ah)                    \
  X(destroy_ah)

struct Symbols {
#define VERBENA_DECLARE(name) decltype(&::ibv_##name) name = nullptr;
  VERBENA_REQUIRED_VERBS(VERBENA_DECLARE)
  VERBENA_OPTIONAL_VERBS(VERBENA_DECLARE)
#undef VERBENA_DECLARE
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;
  // Available since version 62; the header of the build may be older. The speed is in units of 100 Mb/s.
  int (*query_port_speed)(ibv_context* context, uint32_t port_number, uint64_t* speed) = nullptr;
  // Only softverbs has it.
  void* (*take_memory)(size_t bytes) = nullptr;
  void (*give_back_memory)(void* memory) = nullptr;
  const char* (*explain_no_gpu)() = nullptr;
  size_t (*explain_wait)(char* text, size_t bytes) = nullptr;
};

class Library : public Symbols {
 public:
  // `choice` is VERBENA_IBVERBS_LIB: empty (the system's library if it lists a device, otherwise softverbs),
  // "softverbs", or a path. On failure, logs one line that lists the tried libraries.
  static base::Result<std::shared_ptr<const Library>> load(const std::string& choice);

  // Opens this file only. Logs nothing; writes an error to *problem. A library stays loaded until the process
  // ends, because the threads and fork handlers of its providers need its code.
  static std::shared_ptr<const Library> open(const std::string& path, std::string* problem);

  // The path of the file, as the loader found it.
  const std::string& path() const { return path_; }
  bool lists_devices() const;
  bool is_softverbs() const { return take_memory != nullptr; }
  // Returns advice for the user after open_device() failed with this errno.
  const char* advise_on_open(int error) const;
  // Returns 0 or an errno value. Calls the provider's own query_port, like the macro of the header. The
  // exported function is for providers without one, and fills only the older fields. `speed_code` (may be
  // null) also receives codes of XDR and later, which do not fit into the 8 bits of active_speed.
  int read_port(ibv_context* context, uint8_t port_number, ibv_port_attr* attributes,
                uint32_t* speed_code = nullptr) const;

 private:
  explicit Library(std::string path) : path_(std::move(path)) {}
  bool resolve_all(void* handle, std::string* problem);

  std::string path_;
};

}  // namespace verbena::verbs
