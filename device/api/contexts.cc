// Implements the results, the log and the contexts of verbena.h.
#include <netdb.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/interrupt.h"
#include "base/job_key.h"
#include "base/log.h"
#include "base/parameters.h"
#include "bootstrap/environment.h"
#include "device/api/exit.h"
#include "device/api/objects.h"

namespace verbena::api {
namespace {

using base::Outcome;
using base::Status;
using bootstrap::Bootstrap;

static_assert(VERBENA_SUCCESS == static_cast<int>(Status::kOk));
static_assert(VERBENA_CUDA_ERROR == static_cast<int>(Status::kCuda));
static_assert(VERBENA_SYSTEM_ERROR == static_cast<int>(Status::kSystem));
static_assert(VERBENA_INTERNAL_ERROR == static_cast<int>(Status::kInternal));
static_assert(VERBENA_INVALID_ARGUMENT == static_cast<int>(Status::kInvalidArgument));
static_assert(VERBENA_INVALID_USAGE == static_cast<int>(Status::kInvalidUsage));
static_assert(VERBENA_REMOTE_ERROR == static_cast<int>(Status::kRemote));
static_assert(VERBENA_TIMEOUT == static_cast<int>(Status::kTimeout));
static_assert(sizeof(verbena_unique_id) == sizeof(bootstrap::UniqueId));

std::atomic<void (*)(verbena_log_level, const char*)> g_sink{nullptr};

void forward_line(base::LogLevel level, const char*, int, const char* text) {
  if (const auto sink = g_sink.load(std::memory_order_acquire))
    sink(static_cast<verbena_log_level>(level), text);
}

// Converts everything except the lease, which the caller has taken before anything can fail.
Outcome read_heap(const verbena_heap& heap, uint32_t count_ranks, symm::BorrowedHeap& read) {
  if (heap.deltas == nullptr)
    return base::fail(Status::kInvalidArgument, "api: verbena_heap::deltas is NULL");
  if (heap.aliases == nullptr && heap.count_aliases != 0)
    return base::fail(Status::kInvalidArgument,
                      "api: verbena_heap::aliases is NULL, but count_aliases is %zu", heap.count_aliases);
  const auto* const extension = static_cast<const std::byte*>(heap.extension);
  if (extension == nullptr && heap.extension_bytes != 0) {
    return base::fail(Status::kInvalidArgument,
                      "api: verbena_heap::extension is NULL, but extension_bytes is %zu",
                      heap.extension_bytes);
  }
  read.backend = {.type = heap.type,
                  .is_world_only = heap.is_world_only != 0,
                  .multicast_delta = heap.multicast_delta,
                  .extension = {extension, extension + heap.extension_bytes}};
  read.begin = static_cast<std::byte*>(heap.begin);
  read.length_bytes = heap.length_bytes;
  read.reach_bytes = heap.reach_bytes;
  read.deltas.assign(heap.deltas, heap.deltas + count_ranks);
  for (size_t i = 0; i < heap.count_aliases; ++i)
    read.aliases.push_back({heap.aliases[i].begin, heap.aliases[i].length_bytes, heap.aliases[i].symmetric});
  return {};
}

// Creates a context. `join` returns a Result<Bootstrap>. If the call fails, the heap's lease ends with it;
// otherwise it ends with the context.
template <typename Join>
Outcome create(verbena_context** out, const Join& join, const verbena_heap* heap = nullptr) {
  std::optional<symm::BorrowedHeap> borrowed;
  if (heap != nullptr) borrowed.emplace().lease = symm::HeapLease(heap->release, heap->argument);
  if (out == nullptr) return base::fail(Status::kInvalidArgument, "api: context is NULL");
  if (auto loaded = load_settings(); !loaded) return loaded;
  base::Result<Bootstrap> joined = join();
  if (!joined) return joined.error();
  if (heap != nullptr) {
    const Outcome read = read_heap(*heap, joined->count_ranks(), *borrowed);
    if (auto agreed = joined->all_agree(read, base::last_failure()); !agreed) return agreed;
  }
  auto made = symm::Context::create(std::move(*joined), symm::ContextSettings::from_parameters(),
                                    std::move(borrowed));
  if (!made) return made.error();
  auto context = std::make_unique<verbena_context>();
  context->context = std::move(*made);
  context->world = {context.get(), &context->context->world()};
  context->lsa = {context.get(), &context->context->in_reach()};
  note_created(*context);
  *out = context.release();
  return {};
}

Outcome describe_failures(const symm::Context& context, std::string& text) {
  const auto failures = context.find_failures();
  if (!failures) {
    text = base::last_failure();
    return failures.error();
  }
  if (failures->status == Status::kOk) return {};
  text = failures->text +
         " (VERBENA_SYMM_TIMEOUT_MS). Remove the cause, and then reset the team by verbena_team_reset() or "
         "the workspace by verbena_workspace_reset()";
  return base::Error{failures->status, 0};
}

Outcome describe_end(const symm::Context& context, std::string& text) {
  text = context.error();
  switch (context.state()) {
    case SymmAbort::kNone:
      return describe_failures(context, text);
    case SymmAbort::kNetworkFailed:
      return base::Error{Status::kRemote, 0};
    case SymmAbort::kByUser:
      if (text.empty()) text = "the context was aborted";
      break;
    case SymmAbort::kRefused:
      break;
  }
  return base::Error{Status::kInvalidUsage, 0};
}

}  // namespace

Outcome load_settings() {
  static const Outcome outcome = [] {
    Outcome loaded = base::load_parameters();
    return loaded ? base::load_job_key() : loaded;
  }();
  return outcome;
}

base::Result<base::SocketAddress> read_address(const char* text) {
  if (text == nullptr) return base::SocketAddress{};
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(text, nullptr, &hints, &list);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(rc == 0 ? list : nullptr, &freeaddrinfo);
  const auto address = rc == 0 ? base::from_system(list->ai_addr) : std::nullopt;
  if (address) return *address;
  return base::fail(Status::kInvalidArgument, "api: %s is not a numeric IP address", text);
}

Outcome refuse_in_child() {
  return base::fail(Status::kInvalidUsage,
                    "api: this object was created in the parent process before a fork, and cannot be used in "
                    "the child process. Create the object in the child process, or start processes without "
                    "fork (in Python, multiprocessing's start method spawn)");
}

void copy_text(const std::string& cause, char* text, size_t length) {
  if (text == nullptr || length == 0) return;
  const size_t copied = cause.copy(text, length - 1);
  text[copied] = '\0';
}

}  // namespace verbena::api

using namespace verbena;
using api::guard;
using api::guard_end;

extern "C" {

const char* verbena_describe(verbena_result result) {
  switch (result) {
    case VERBENA_SUCCESS:
      return "success";
    case VERBENA_CUDA_ERROR:
      return "a CUDA call failed";
    case VERBENA_SYSTEM_ERROR:
      return "a call of the operating system or of the verbs library failed";
    case VERBENA_INTERNAL_ERROR:
      return "the library has an internal error";
    case VERBENA_INVALID_ARGUMENT:
      return "an argument is not valid";
    case VERBENA_INVALID_USAGE:
      return "a setting is invalid, or a call was made in the wrong state";
    case VERBENA_REMOTE_ERROR:
      return "a peer, or the network to it, failed";
    case VERBENA_TIMEOUT:
      return "a peer did not respond in time";
  }
  return "not a result code of this library";
}

const char* verbena_last_error(void) {
  return base::last_failure();
}

void verbena_set_log(void (*sink)(verbena_log_level level, const char* line)) {
  api::g_sink.store(sink, std::memory_order_release);
  base::set_log_sink(sink == nullptr ? nullptr : &api::forward_line);
}

void verbena_set_interrupt_check(int (*check)(void)) {
  base::set_interrupt_check(check);
}

verbena_result verbena_get_unique_id(verbena_unique_id* id) {
  return guard([&]() -> base::Outcome {
    if (id == nullptr) return base::fail(base::Status::kInvalidArgument, "api: id is NULL");
    if (auto loaded = api::load_settings(); !loaded) return loaded;
    const auto made = bootstrap::make_unique_id();
    if (!made) return made.error();
    std::memcpy(id->bytes, made->bytes, sizeof(id->bytes));
    return {};
  });
}

verbena_result verbena_context_create(const verbena_unique_id* id, uint32_t rank, uint32_t count_ranks,
                                      verbena_context** context) {
  return guard([&]() -> base::Outcome {
    if (id == nullptr) return base::fail(base::Status::kInvalidArgument, "api: the unique id is NULL");
    bootstrap::UniqueId known;
    std::memcpy(known.bytes, id->bytes, sizeof(known.bytes));
    return api::create(context, [&] { return bootstrap::Bootstrap::join(known, rank, count_ranks); });
  });
}

verbena_result verbena_context_create_from_environment(verbena_context** context) {
  return guard([&] { return api::create(context, [] { return bootstrap::join_from_environment(); }); });
}

verbena_result verbena_context_create_from_all_gather(verbena_all_gather all_gather, void* argument,
                                                      uint32_t rank, uint32_t count_ranks,
                                                      verbena_context** context) {
  return guard([&] {
    return api::create(context, [&] {
      return bootstrap::Bootstrap::from_all_gather(all_gather, argument, rank, count_ranks);
    });
  });
}

size_t verbena_heap_words(uint32_t count_ranks) {
  size_t words_bytes = 0;
  const verbena_result result = guard([&] {
    base::Outcome loaded = api::load_settings();
    if (loaded) words_bytes = symm::ContextSettings::from_parameters().measure_words(count_ranks);
    return loaded;
  });
  return result == VERBENA_SUCCESS ? words_bytes : 0;
}

verbena_result verbena_context_create_over_heap(const verbena_heap* heap, verbena_all_gather all_gather,
                                                void* argument, uint32_t rank, uint32_t count_ranks,
                                                verbena_context** context) {
  return guard([&]() -> base::Outcome {
    if (heap == nullptr) return base::fail(base::Status::kInvalidArgument, "api: the heap is NULL");
    return api::create(
        context,
        [&] { return bootstrap::Bootstrap::from_all_gather(all_gather, argument, rank, count_ranks); }, heap);
  });
}

verbena_result verbena_context_destroy(verbena_context* context) {
  if (context == nullptr) return VERBENA_SUCCESS;
  return guard_end(context->context->process(), [&]() -> base::Outcome {
    const std::unique_ptr<verbena_context> owned(context);
    api::note_destroyed(*owned);
    api::forget_pools(*owned);
    if (owned->context->state() != SymmAbort::kNone) return {};
    return owned->context->leave();
  });
}

uint32_t verbena_context_rank(const verbena_context* context) {
  return context->context->rank();
}
uint32_t verbena_context_size(const verbena_context* context) {
  return context->context->count_ranks();
}

verbena_result verbena_context_barrier(verbena_context* context) {
  return guard(context->context->process(), [&] { return context->context->barrier(); });
}

verbena_result verbena_context_quiet(verbena_context* context) {
  return guard(context->context->process(), [&] { return context->context->quiet(); });
}

verbena_result verbena_context_get_error(verbena_context* context, char* text, size_t length) {
  return guard([&] {
    std::string cause;
    const base::Outcome end = api::describe_end(*context->context, cause);
    api::copy_text(cause, text, length);
    return end;
  });
}

void verbena_context_abort(verbena_context* context) {
  if (context->context->process().is_here()) context->context->end_waits();
}

}  // extern "C"
