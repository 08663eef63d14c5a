// A member of an object that owns something, such as a handle or a length. A move leaves T() behind. An
// assignment exchanges the values, so that the source's destructor frees what the target owned. The moves of
// an owner whose members have this type are the default ones.
#pragma once

#include <utility>

namespace verbena::base {

template <typename T>
class Movable {
 public:
  Movable() = default;
  Movable(T value) : value_(std::move(value)) {}
  Movable(Movable&& other) noexcept : value_(std::exchange(other.value_, T())) {}
  Movable& operator=(Movable&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Movable() = default;

  operator const T&() const { return value_; }
  const T* operator->() const { return &value_; }
  T& get() { return value_; }
  const T& get() const { return value_; }

 private:
  T value_{};
};

}  // namespace verbena::base
