// What this thread asks of the heap, of locks and of the kernel between two points. malloc and
// pthread_mutex_lock are replaced for the whole program, the libraries it loads included. The first system
// call is caught by the kernel's syscall user dispatch, which turns it into a signal: no ptrace, no seccomp,
// and it does not matter which code makes the call. Calls that the vDSO serves are no system calls.
#pragma once

#include <cstdint>

namespace verbena::transport {

// Own code is what is linked into this program: the plugin's layers and the test.
struct Calls {
  uint64_t allocations = 0;          // of own code: new, delete, malloc and its kin, free
  uint64_t library_allocations = 0;  // of the libraries': the verbs library's
  uint64_t locks = 0;           // of own code: mutexes, those only tried, and readers' and writers' locks
  uint64_t log_lines = 0;       // of any level
  long first_system_call = -1;  // of any code
};

// False: this kernel cannot tell of system calls. Log lines go nowhere while calls are counted.
bool start_counting();
Calls stop_counting();

}  // namespace verbena::transport
