// What the instrumented part of the emulator, which makes the accesses, asks of the part that the thread
// sanitizer does not see. No type of that part appears here: its functions must exist once, uninstrumented.
#pragma once

#include <cstddef>
#include <cstdint>

#include "verbena/device/platform.cuh"

namespace verbena::emulator {

// Lets others run, then checks length and alignment.
void begin_access(const char* operation, const void* address, size_t length_bytes);
// Strong accesses of 16 bytes are two of 8: whether this one's first comes first.
bool tears_in_order();
// Fails the run: there is no such instruction.
[[noreturn]] void refuse_order(const char* operation);

// See SynchronizationModel; false: also access the memory as a plain variable.
bool observe_load(const void* address, uint64_t bits, device::Order order, device::Scope scope);
bool publish_store(const void* address, uint64_t bits, device::Order order, device::Scope scope,
                   bool is_update);
void forget(const void* address);
void note_store();

}  // namespace verbena::emulator
