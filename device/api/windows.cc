// Implements the windows, teams and workspaces of verbena.h.
#include <algorithm>
#include <span>

#include "base/log.h"
#include "device/api/objects.h"

using namespace verbena;
using api::guard;
using api::guard_end;
using api::unwrap;
using api::wrap;
using base::Outcome;
using base::Status;

namespace {

Outcome take_window(const base::Result<symm::ContextWindow*>& made, verbena_window** window) {
  if (!made) return made.error();
  *window = wrap(*made);
  return {};
}

Outcome take_team(verbena_context* context, const base::Result<symm::Team*>& made, verbena_team** team) {
  if (!made) return made.error();
  *team = nullptr;
  if (*made == nullptr) return {};
  const std::lock_guard lock(context->teams_mutex);
  context->teams.push_back(std::make_unique<verbena_team>(verbena_team{context, *made}));
  *team = context->teams.back().get();
  return {};
}

verbena_result refuse_null(const char* what) {
  return guard(
      [&]() -> Outcome { return base::fail(Status::kInvalidArgument, "api: the %s is NULL", what); });
}

bool is_workspaces(const verbena_team& team) {
  const std::lock_guard lock(team.context->teams_mutex);
  const auto& all = team.context->workspaces;
  return std::any_of(all.begin(), all.end(), [&](const auto& one) { return &one->team == &team; });
}

}  // namespace

extern "C" {

verbena_result verbena_window_allocate(verbena_context* context, size_t length_bytes,
                                       verbena_window** window) {
  return guard(context->context->process(),
               [&] { return take_window(context->context->allocate_window(length_bytes), window); });
}

verbena_result verbena_window_register(verbena_context* context, void* address, size_t length_bytes,
                                       verbena_window** window) {
  return guard(context->context->process(),
               [&] { return take_window(context->context->register_window(address, length_bytes), window); });
}

verbena_result verbena_window_free(verbena_window* window) {
  if (window == nullptr) return refuse_null("window");
  symm::Context& context = *unwrap(window)->context;
  return guard_end(context.process(), [&] { return context.free_window(*unwrap(window)); });
}

void* verbena_window_address(const verbena_window* window) {
  return unwrap(window)->address;
}
size_t verbena_window_length(const verbena_window* window) {
  return unwrap(window)->length_bytes;
}
void* verbena_window_peer_address(const verbena_window* window, uint32_t rank) {
  return unwrap(window)->context->find_peer(*unwrap(window), rank);
}
verbena_window* verbena_window_find(verbena_context* context, const void* address) {
  return wrap(context->context->find_window(address));
}

verbena_team* verbena_team_world(verbena_context* context) {
  return &context->world;
}
verbena_team* verbena_team_lsa(verbena_context* context) {
  return &context->lsa;
}

verbena_result verbena_team_split(verbena_context* context, const verbena_team* parent, int64_t color,
                                  int64_t key, verbena_team** team) {
  return guard(context->context->process(), [&] {
    const symm::Team* const of = parent == nullptr ? nullptr : parent->team;
    return take_team(context, context->context->split_team(of, color, key), team);
  });
}

verbena_result verbena_team_create(verbena_context* context, const uint32_t* ranks, size_t count,
                                   verbena_team** team) {
  return guard(context->context->process(), [&] {
    return take_team(context, context->context->make_team(std::span(ranks, count)), team);
  });
}

verbena_result verbena_team_reset(verbena_context* context, verbena_team* team) {
  return guard(context->context->process(), [&]() -> Outcome {
    if (team != nullptr && is_workspaces(*team))
      return base::fail(Status::kInvalidArgument,
                        "api: this team belongs to a workspace. Reset the workspace with "
                        "verbena_workspace_reset() instead of the team");
    return context->context->reset_team(team == nullptr ? nullptr : team->team);
  });
}

verbena_result verbena_team_free(verbena_team* team) {
  if (team == nullptr) return refuse_null("team");
  return guard_end(team->context->context->process(), [&]() -> Outcome {
    if (team == &team->context->world || team == &team->context->lsa || is_workspaces(*team))
      return base::fail(Status::kInvalidArgument,
                        "api: this team was not created by verbena_team_split() or verbena_team_create(), so "
                        "it cannot be freed");
    verbena_context& context = *team->context;
    context.context->free_team(*team->team);
    const std::lock_guard lock(context.teams_mutex);
    std::erase_if(context.teams, [&](const auto& one) { return one.get() == team; });
    return {};
  });
}

uint32_t verbena_team_rank(const verbena_team* team) {
  return team->team->rank();
}
uint32_t verbena_team_size(const verbena_team* team) {
  return static_cast<uint32_t>(team->team->ranks().size());
}
uint32_t verbena_team_world_rank(const verbena_team* team, uint32_t rank) {
  return team->team->ranks()[rank];
}
const void* verbena_team_device_context(const verbena_team* team) {
  return team->team->device_context();
}
const void* verbena_team_host_context(const verbena_team* team) {
  return &team->team->context();
}

verbena_result verbena_workspace_create(verbena_context* context, const verbena_team* team,
                                        size_t slots_bytes, uint32_t blocks, verbena_workspace** workspace) {
  return guard(context->context->process(), [&]() -> Outcome {
    const auto made = context->context->make_workspace(team == nullptr ? nullptr : team->team,
                                                       {.slots_bytes = slots_bytes, .blocks = blocks});
    if (!made) return made.error();
    const std::lock_guard lock(context->teams_mutex);
    context->workspaces.push_back(
        std::make_unique<verbena_workspace>(verbena_workspace{*made, {context, (*made)->team.get()}}));
    *workspace = context->workspaces.back().get();
    return {};
  });
}

verbena_result verbena_workspace_reset(verbena_workspace* workspace) {
  if (workspace == nullptr) return refuse_null("workspace");
  symm::Context& context = *workspace->workspace->context;
  return guard(context.process(), [&] { return context.reset_workspace(*workspace->workspace); });
}

verbena_result verbena_workspace_free(verbena_workspace* workspace) {
  if (workspace == nullptr) return refuse_null("workspace");
  verbena_context& context = *workspace->team.context;
  return guard_end(context.context->process(), [&]() -> Outcome {
    if (auto freed = context.context->free_workspace(*workspace->workspace); !freed) return freed;
    const std::lock_guard lock(context.teams_mutex);
    std::erase_if(context.workspaces, [&](const auto& one) { return one.get() == workspace; });
    return {};
  });
}

verbena_result verbena_workspace_get_error(verbena_workspace* workspace, char* text, size_t length) {
  return guard([&]() -> Outcome {
    const symm::Workspace& asked = *workspace->workspace;
    const auto failure = asked.team == nullptr ? base::Result<symm::TeamFailure>(symm::TeamFailure{})
                                               : asked.context->find_failure(*asked.team);
    api::copy_text(failure ? failure->text : base::last_failure(), text, length);
    if (!failure) return failure.error();
    if (failure->status == Status::kOk) return {};
    return base::Error{failure->status, 0};
  });
}

size_t verbena_workspace_slot_bytes(const verbena_workspace* workspace) {
  return workspace->workspace->slot_bytes();
}
const void* verbena_workspace_device_context(const verbena_workspace* workspace) {
  const symm::Team* const team = workspace->team.team;
  return team == nullptr ? nullptr : team->device_context();
}
const void* verbena_workspace_host_context(const verbena_workspace* workspace) {
  const symm::Team* const team = workspace->team.team;
  return team == nullptr ? nullptr : &team->context();
}
const verbena_team* verbena_workspace_team(const verbena_workspace* workspace) {
  return workspace->team.team == nullptr ? nullptr : &workspace->team;
}

}  // extern "C"
