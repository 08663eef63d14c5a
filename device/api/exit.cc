#include "device/api/exit.h"

#include <cstdlib>
#include <mutex>
#include <set>

#include "device/api/objects.h"

namespace verbena::api {
namespace {

struct Living {
  std::mutex mutex;
  std::set<verbena_context*> contexts;
  const base::OwnProcess process;
};

// The object is never destroyed, because exit handlers may still destroy contexts.
Living& living() {
  static auto* const all = new Living;
  return *all;
}

// A forked child does not have these threads, so it must not wait for them.
void end_threads() {
  Living& all = living();
  if (!all.process.is_here()) return;
  const std::lock_guard lock(all.mutex);
  for (verbena_context* context : all.contexts) context->context->end_threads();
}

// exit() calls the latest handler first. CUDA has registered its handler by the time a GPU is current.
void register_handler(bool has_gpu) {
  static std::once_flag with_gpu, without;
  std::call_once(has_gpu ? with_gpu : without, [] { std::atexit(end_threads); });
}

}  // namespace

void note_created(verbena_context& context) {
  register_handler(context.context->gpu() != base::kNoGpu);
  const std::lock_guard lock(living().mutex);
  living().contexts.insert(&context);
}

void note_destroyed(verbena_context& context) {
  const std::lock_guard lock(living().mutex);
  living().contexts.erase(&context);
}

}  // namespace verbena::api
