// Removes the stack protector from the few functions that every message calls. Its checks on entry and exit
// would cost each of them about ten instructions. These functions need it only because they have a local
// array, or pass the address of a local variable. No length from a peer or a caller may affect such a
// variable: each index must be a constant, or smaller than the array. Do not use the macro in a function that
// cannot guarantee this.
#pragma once

#define VERBENA_HOT_PATH __attribute__((no_stack_protector))
