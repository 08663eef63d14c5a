// Compiled without sanitizers: what it writes is no part of the program under test.
#include "chosen.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace verbena_faults {
namespace {

constexpr unsigned kIds = 1 << 20;  // schemata.py
unsigned char* reached = nullptr;   // shared with forked processes

unsigned read_state() {
  if (const char* const path = std::getenv("FAULT_RECORD")) {
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, kIds) != 0) std::abort();
    void* const mapped = mmap(nullptr, kIds, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) std::abort();
    close(file);
    reached = static_cast<unsigned char*>(mapped);
    return kRecording;
  }
  const char* const text = std::getenv("FAULT");
  return text == nullptr ? 0 : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

}  // namespace

unsigned state = read_state();

void record(unsigned mutant) {
  reached[mutant % kIds] = 1;
}

}  // namespace verbena_faults
