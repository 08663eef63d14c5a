// Included in front of every source of a build with mutants (schemata.py): which of them this process has.
#pragma once

#ifndef VERBENA_FAULT_BUILT
#define VERBENA_FAULT_BUILT 0
#endif

namespace verbena_faults {

inline constexpr unsigned kBuilt = VERBENA_FAULT_BUILT;
// Set before main() from FAULT, a mutant's number; or from FAULT_RECORD, a file that gets a byte for each
// mutant whose place was reached. 0: neither.
extern unsigned state;
inline constexpr unsigned kRecording = ~0U;
void record(unsigned mutant);

constexpr bool is(unsigned mutant) {
  if (__builtin_is_constant_evaluated() || state == 0) return false;
  if (state == kRecording) record(mutant);
  return state == mutant;
}

}  // namespace verbena_faults
