// Error handling: the function that detects an error logs it once (base/log.h, fail()) and returns an Error,
// and its callers return the Error too. "Not now" is not an error; it is returned as a bool or an empty
// optional.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace verbena::base {

// The kinds of errors. They correspond to NCCL's result codes (plugin/nccl maps them one to one).
enum class Status : uint8_t {
  kOk,
  kCuda,             // a CUDA call failed
  kSystem,           // a call of the operating system or the verbs library failed
  kInternal,         // an internal invariant does not hold
  kInvalidArgument,  // an invalid pointer or number from the caller
  kInvalidUsage,     // an invalid setting, or a call in the wrong state
  kRemote,           // the peer, or the network to it
  kTimeout,          // a deadline of the parameter table passed
};

struct [[nodiscard]] Error {
  Status status = Status::kInternal;
  int errno_value = 0;  // 0 if there is none
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

// A Result<void>. Fits a register, because every call of the data path returns one.
class [[nodiscard]] Outcome {
 public:
  Outcome() = default;
  Outcome(Error error)  // NOLINT
      : word_(static_cast<uint64_t>(static_cast<uint32_t>(error.errno_value)) << 32 |
              static_cast<uint64_t>(error.status)) {}

  bool is_ok() const { return status() == Status::kOk; }
  bool has_failed() const { return !is_ok(); }
  // Returns true if the outcome is a success, as for a Result. Use it where the value is created: `if (auto
  // outcome = f(); !outcome) return outcome;`. Test a stored value by name: `if (error_.has_failed()) return
  // error_;`.
  explicit operator bool() const { return is_ok(); }
  Error error() const { return {status(), static_cast<int>(word_ >> 32)}; }
  Status status() const { return static_cast<Status>(word_ & 0xFF); }

 private:
  uint64_t word_ =
      0;  // status, and errno in the upper half: one word, because each call would have to pack two members
};
static_assert(sizeof(Outcome) == 8);

}  // namespace verbena::base
