// Keeps C++ exceptions inside libibverbs' C functions: they return nullptr or an errno instead.
#pragma once

namespace verbena::softverbs {

// The result of a call in which an exception was caught: nullptr, or an errno.
class Caught {
 public:
  explicit Caught(int error) : error_(error) {}
  template <typename T>
  operator T*() const {  // NOLINT: implicit, so that one macro serves all functions
    return nullptr;
  }
  operator int() const { return error_; }  // NOLINT

 private:
  int error_;
};

// Call this in an exception handler. Sets errno from the current exception. Logs only the first exception of
// the process.
Caught report_exception() noexcept;

// Ends the body of a function that applications in C call and that allocates memory:
//
//   SOFTVERBS_API ibv_pd* ibv_alloc_pd(ibv_context* context) try {
//     ...
//   }
//   SOFTVERBS_CATCH
#define SOFTVERBS_CATCH                            \
  catch (...) {                                    \
    return verbena::softverbs::report_exception(); \
  }

}  // namespace verbena::softverbs
