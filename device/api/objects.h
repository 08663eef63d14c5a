// The objects behind the handles of verbena.h, and the checks that all calls share.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/own_process.h"
#include "base/socket_address.h"
#include "device/symm/context.h"
#include "verbena/verbena.h"

// A window's handle points to its ContextWindow. The other handles point to the structures below, which the
// context owns.
struct verbena_team {
  verbena_context* context;
  verbena::symm::Team* team;
};

struct verbena_workspace {
  verbena::symm::Workspace* workspace;
  verbena_team team;  // the members, with the workspace's words; empty on ranks that are not members
};

struct verbena_context {
  std::unique_ptr<verbena::symm::Context> context;
  verbena_team world, lsa;
  std::mutex teams_mutex;                            // guards the two lists
  std::vector<std::unique_ptr<verbena_team>> teams;  // created by the application
  std::vector<std::unique_ptr<verbena_workspace>> workspaces;
};

namespace verbena::api {

inline symm::ContextWindow* unwrap(verbena_window* window) {
  return reinterpret_cast<symm::ContextWindow*>(window);
}
inline const symm::ContextWindow* unwrap(const verbena_window* window) {
  return reinterpret_cast<const symm::ContextWindow*>(window);
}
inline verbena_window* wrap(symm::ContextWindow* window) {
  return reinterpret_cast<verbena_window*>(window);
}

// Reads the environment and the job key, once per process.
base::Outcome load_settings();

// Detaches the context's pools from their allocators. Called before the context is destroyed, which frees the
// pools.
void forget_pools(const verbena_context& context);

// Parses a numeric IP address. NULL gives an empty SocketAddress.
base::Result<base::SocketAddress> read_address(const char* text);

// Copies `cause`, truncated to `length` bytes including the NUL, to `text`, which may be NULL.
void copy_text(const std::string& cause, char* text, size_t length);

// Returns an error for a call in a forked child, because the objects belong to the parent process.
base::Outcome refuse_in_child();

// Runs a call and converts its outcome to a result. No exception passes through C.
template <typename Call>
verbena_result guard(const Call& call) noexcept {
  try {
    const base::Outcome outcome = call();
    return static_cast<verbena_result>(outcome.status());
  } catch (const std::bad_alloc&) {
    return static_cast<verbena_result>(base::fail(base::Status::kSystem, "api: out of memory").status);
  } catch (const std::exception& error) {
    return static_cast<verbena_result>(base::fail(base::Status::kInternal, "api: %s", error.what()).status);
  }
}

// Does the same as guard() for a call on an object, but returns an error if `owner` is not this process.
template <typename Call>
verbena_result guard(const base::OwnProcess& owner, const Call& call) noexcept {
  return guard(
      [&]() -> base::Outcome { return owner.is_here() ? base::Outcome(call()) : refuse_in_child(); });
}
// Does the same as guard() for a call that frees an object, but does nothing in a forked child.
template <typename Call>
verbena_result guard_end(const base::OwnProcess& owner, const Call& call) noexcept {
  return owner.is_here() ? guard(call) : VERBENA_SUCCESS;
}

}  // namespace verbena::api
