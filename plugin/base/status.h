// How a failure travels: the frame that finds it logs it once (base/log.h, fail()) and returns an Error;
// everybody above passes it on. "Not now" is not a failure: it is a bool or an empty optional.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace verbena::base {

// What went wrong, in the terms that NCCL's result codes know (plugin/nccl maps them one to one).
enum class Status : uint8_t {
  kOk,
  kCuda,             // a CUDA call failed
  kSystem,           // the operating system or the verbs library refused
  kInternal,         // an invariant of ours does not hold
  kInvalidArgument,  // the caller's pointer or number
  kInvalidUsage,     // a setting, or a call out of order
  kRemote,           // the peer, or the way to it
  kTimeout,          // a deadline of the parameter table passed
};

struct [[nodiscard]] Error {
  Status status = Status::kInternal;
  int errno_value = 0;  // 0 where there is none
};

// A value or an Error. Result<void> is spelled Outcome.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit by design, as `return value;` reads best
  Result(Error error) : error_(error) {}         // NOLINT

  explicit operator bool() const { return value_.has_value(); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  Error error() const { return error_; }

 private:
  std::optional<T> value_;
  Error error_;
};

class [[nodiscard]] Outcome {
 public:
  Outcome() = default;
  Outcome(Error error) : error_(error), ok_(false) {}  // NOLINT

  explicit operator bool() const { return ok_; }
  Error error() const { return error_; }
  Status status() const { return ok_ ? Status::kOk : error_.status; }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace verbena::base
