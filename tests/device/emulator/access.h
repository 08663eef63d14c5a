// What the instrumented part of the emulator, which makes the accesses, asks of the part that the thread
// sanitizer does not see. No type of that part appears here: its functions must exist once, uninstrumented.
#pragma once

#include <cstddef>
#include <cstdint>

#include "verbena/device/platform.cuh"

namespace verbena::emulator {

// Lets others run, then checks length and alignment.
void begin_access(const char* operation, const void* address, size_t length_bytes);
inline constexpr size_t kLineBytes = 64;  // of four lanes together
// Whether strong accesses of more than 8 bytes are several of 8, and in which order this one's come.
enum class Tear { kNone, kFirstToLast, kLastToFirst };
Tear choose_tear();
// Fails the run: there is no such instruction.
[[noreturn]] void refuse_order(const char* operation);

// See SynchronizationModel; false: also access the memory as a plain variable.
bool observe_load(const void* address, uint64_t bits, device::Order order, device::Scope scope);
bool publish_store(const void* address, uint64_t bits, device::Order order, device::Scope scope,
                   bool is_update);
void forget(const void* address);
void note_store();

}  // namespace verbena::emulator
