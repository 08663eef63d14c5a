// Finds functions of a library that the application has loaded. Also contains guard(), which converts
// exceptions to results.
#pragma once

#include <dlfcn.h>

#include <exception>
#include <new>
#include <string>

#include "verbena/backends.h"
#include "verbena/verbena.hpp"

namespace verbena::backends {

// A library that the process has loaded under this name, or that is part of the program. The library is never
// loaded again, because a second copy would not have the state of the first copy.
class ProcessLibrary {
 public:
  explicit ProcessLibrary(const char* name) : name_(name), handle_(dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {}

  const char* name() const { return name_; }
  // Returns null if the library has no such function.
  template <typename Function>
  Function* seek(const char* symbol) const {
    void* const found = dlsym(handle_ != nullptr ? handle_ : RTLD_DEFAULT, symbol);
    return reinterpret_cast<Function*>(found);
  }
  template <typename Function>
  Function* find(const char* symbol) const {
    if (Function* const found = seek<Function>(symbol)) return found;
    throw Failure(VERBENA_INVALID_USAGE, std::string(name_) + " is not loaded, or has no function " + symbol);
  }

 private:
  const char* name_;
  void* handle_;
};

// Converts exceptions to results, because no exception may pass through C.
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
