// Finds the window in which a tensor lies.
#pragma once

#include <cstdint>
#include <optional>

#include "verbena/verbena.h"

namespace verbena::ops {

struct WindowPlace {
  verbena_window* window;
  uint64_t offset;  // bytes from the window's begin
};

// Returns nothing unless the whole tensor lies in one window, at symmetric addresses.
inline std::optional<WindowPlace> find_window_place(verbena_context* context, const void* tensor,
                                                    uint64_t length_bytes) {
  verbena_window* const window = verbena_window_find(context, tensor);
  if (window == nullptr) return std::nullopt;
  const char* const begin = static_cast<char*>(verbena_window_address(window));
  // If the address is below the window's begin, the unsigned difference is very large.
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(tensor) - begin);
  if (length_bytes > verbena_window_length(window) || offset > verbena_window_length(window) - length_bytes)
    return std::nullopt;
  return WindowPlace{window, offset};
}

}  // namespace verbena::ops
