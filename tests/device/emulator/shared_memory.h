// A block's shared memory: pieces by key, with guard bytes around each.
#pragma once

#include <cstddef>
#include <string>

#include "fiber.h"

namespace verbena::emulator {

inline constexpr size_t kSharedMemoryBytes = 227 * 1024;  // what a block of sm_90 may have

void* find_shared_memory(Block& block, const void* key, size_t length_bytes, size_t alignment_bytes);
// "" or which piece was written beside.
std::string check_shared_memory_guards(const Block& block);
void release_shared_memory(Block& block);

}  // namespace verbena::emulator
