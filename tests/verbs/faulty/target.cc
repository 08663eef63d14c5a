#include "target.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace verbena::verbs::faulty {
namespace {

Target load() {
  const char* path = std::getenv(kTargetVariable);
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    std::fprintf(stderr, "faulty libibverbs: %s: %s\n", kTargetVariable,
                 path == nullptr ? "not set" : dlerror());
    std::abort();
  }
  Target found;
#define FAULTY_RESOLVE(name) \
  found.name = reinterpret_cast<decltype(found.name)>(dlsym(library, "ibv_" #name));
  FAULTY_VERBS(FAULTY_RESOLVE)
#undef FAULTY_RESOLVE
  found.query_gid_ex = reinterpret_cast<decltype(found.query_gid_ex)>(dlsym(library, "_ibv_query_gid_ex"));
  return found;
}

int read_limit(const char* variable, int otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace

const Target& target() {
  static const Target loaded = load();
  return loaded;
}

Hooks& hooks() {
  static Hooks shared{.most_srq_entries = read_limit(kSrqEntriesVariable, INT32_MAX),
                      .most_inline_bytes = read_limit(kInlineBytesVariable, INT32_MAX),
                      .most_out_of_order = read_limit(kOutOfOrderVariable, 0),
                      .reaches = &reaches_region,
                      .end_device = &end_device};
  return shared;
}

bool refuse(const char* name) {
  Hooks& all = hooks();
  if (++all.calls != all.failing_call) return false;
  all.failed = name;
  errno = all.failing_errno;
  return true;
}

}  // namespace verbena::verbs::faulty

extern "C" verbena::verbs::faulty::Hooks* faulty_ibverbs_hooks() {
  return &verbena::verbs::faulty::hooks();
}
