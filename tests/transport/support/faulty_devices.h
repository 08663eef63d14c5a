// Devices that fail on request: softverbs behind `tests/verbs/faulty`. For targets that define where both
// are.
#pragma once

#include <dlfcn.h>
#include <stdlib.h>

#include "transport/support/host.h"
#include "verbs/faulty/faulty_ibverbs.h"

namespace verbena::transport {

inline verbs::faulty::Hooks& find_hooks() {
  void* library = dlopen(FAULTY_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  return *reinterpret_cast<verbs::faulty::GetHooks>(dlsym(library, verbs::faulty::kGetHooks))();
}

// Before devices are looked for.
inline Settings choose_faulty_devices() {
  setenv(verbs::faulty::kTargetVariable, SOFTVERBS_LIBRARY, 1);
  return {{"VERBENA_IBVERBS_LIB", FAULTY_LIBRARY}};
}

}  // namespace verbena::transport
