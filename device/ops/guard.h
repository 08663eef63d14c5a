// guard() wraps every function of the library's C API, so that no exception passes through C.
#pragma once

#include <cstring>
#include <exception>
#include <new>
#include <string_view>

#include "verbena/backends.h"
#include "verbena/verbena.hpp"

namespace verbena::ops {

template <typename Body>
verbena_result guard(const Body& body) noexcept {
  try {
    body();
    return VERBENA_SUCCESS;
  } catch (const Failure& failure) {
    // An error of libverbena.so, or of an earlier call of this thread, has already been logged.
    if (std::strcmp(failure.what(), verbena_last_error()) == 0) return failure.result();
    return verbena_fail(failure.result(), failure.what());
  } catch (const std::bad_alloc&) {
    return verbena_fail(VERBENA_SYSTEM_ERROR, "ops: out of memory");
  } catch (const std::exception& error) {
    return verbena_fail(VERBENA_INTERNAL_ERROR, error.what());
  }
}

// Implements the get_error functions. Calls `check`. If `check` throws a Failure, copies its text to `text`;
// otherwise copies "". `text` has `length` bytes, or is null.
template <typename Check>
verbena_result report_error(char* text, size_t length, const Check& check) noexcept {
  const auto say = [&](const char* what) {
    if (text != nullptr && length != 0) text[std::string_view(what).copy(text, length - 1)] = '\0';
  };
  try {
    check();
    say("");
    return VERBENA_SUCCESS;
  } catch (const Failure& failure) {
    say(failure.what());
    return failure.result();
  } catch (const std::exception& error) {
    return verbena_fail(VERBENA_INTERNAL_ERROR, error.what());
  }
}

inline void expect(bool condition, const char* text) {
  if (!condition) throw Failure(VERBENA_INVALID_ARGUMENT, text);
}

}  // namespace verbena::ops
