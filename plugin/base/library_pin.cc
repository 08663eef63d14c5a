#include "base/library_pin.h"

#include <dlfcn.h>

namespace verbena::base {

// Does nothing if the plugin is linked into the program.
void pin_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&pin_library), &info) == 0) return;
  static_cast<void>(dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE));
}

}  // namespace verbena::base
