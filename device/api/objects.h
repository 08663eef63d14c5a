// What is behind the handles of verbena.h.
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

// A window's handle is its ContextWindow; the others' are these, all owned by the context.
struct verbena_team {
  verbena_context* context;
  verbena::symm::Team* team;
};

struct verbena_workspace {
  verbena::symm::Workspace* workspace;
  verbena_team team;  // its members, with the workspace's words; no team of a rank that is none
};

struct verbena_context {
  std::unique_ptr<verbena::symm::Context> context;
  verbena_team world, lsa;
  std::mutex teams_mutex;                            // guards the lists
  std::vector<std::unique_ptr<verbena_team>> teams;  // the caller's
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

// Reads the environment and the job key, once a process.
base::Outcome load_settings();

// Pools of the context serve no allocator any more; they go with it.
void forget_pools(const verbena_context& context);

// Parses an IP address in figures; null gives a SocketAddress of no family.
base::Result<base::SocketAddress> read_address(const char* text);

// `cause`, cut to `length` bytes with its zero, goes to `text`, which may be null.
void copy_text(const std::string& cause, char* text, size_t length);

// In a forked child: what the call is about belongs to the parent.
base::Outcome refuse_in_child();

// The boundary that no exception crosses: what a call did, as its result.
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

// The same for a call on an object of that process.
template <typename Call>
verbena_result guard(const base::OwnProcess& owner, const Call& call) noexcept {
  return guard(
      [&]() -> base::Outcome { return owner.is_here() ? base::Outcome(call()) : refuse_in_child(); });
}
// For a call that frees an object: does nothing in a forked child.
template <typename Call>
verbena_result guard_end(const base::OwnProcess& owner, const Call& call) noexcept {
  return owner.is_here() ? guard(call) : VERBENA_SUCCESS;
}

}  // namespace verbena::api
