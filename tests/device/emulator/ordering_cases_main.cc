// usage: emulator_ordering_cases CASE SEED: runs one case, for ordering_test.cc, which reads the sanitizer's
// words.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/emulator/ordering_cases.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  for (const auto& one : verbena::emulator::ordering_cases()) {
    if (strcmp(one.name, argv[1]) != 0) continue;
    one.run(strtoull(argv[2], nullptr, 10));
    return 0;
  }
  fprintf(stderr, "no case %s\n", argv[1]);
  return 2;
}
