// Functions of a library that the application has loaded; and the boundary of the calls that use them.
#pragma once

#include <dlfcn.h>

#include <exception>
#include <new>
#include <string>

#include "verbena/backends.h"
#include "verbena/verbena.hpp"

namespace verbena::backends {

// Loaded already, by this name or as part of the program: a second copy would know nothing of what the first
// one has set up.
class ProcessLibrary {
 public:
  explicit ProcessLibrary(const char* name) : name_(name), handle_(dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {}

  const char* name() const { return name_; }
  // Null: not there.
  template <typename Function>
  Function* seek(const char* symbol) const {
    void* const found = dlsym(handle_ != nullptr ? handle_ : RTLD_DEFAULT, symbol);
    return reinterpret_cast<Function*>(found);
  }
  template <typename Function>
  Function* find(const char* symbol) const {
    if (Function* const found = seek<Function>(symbol)) return found;
    throw Failure(VERBENA_INVALID_USAGE, std::string(name_) + " is not loaded, or has no " + symbol);
  }

 private:
  const char* name_;
  void* handle_;
};

// No exception passes through C.
template <typename Call>
verbena_result guard(const Call& call) noexcept {
  try {
    call();
    return VERBENA_SUCCESS;
  } catch (const Failure& failure) {
    return verbena_fail(failure.result(), failure.what());
  } catch (const std::bad_alloc&) {
    return verbena_fail(VERBENA_SYSTEM_ERROR, "out of memory");
  } catch (const std::exception& error) {
    return verbena_fail(VERBENA_INTERNAL_ERROR, error.what());
  }
}

}  // namespace verbena::backends
