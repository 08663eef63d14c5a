// Removes the stack protector from the few functions that every message runs through: its check on entry and
// exit would cost each of them about ten instructions. They need it only because they have a local array, or
// pass the address of a local. No length from a peer or a caller may reach such a local: each index is a
// constant or below the array's own extent. A function that cannot promise this must not use the macro.
#pragma once

#define VERBENA_HOT_PATH __attribute__((no_stack_protector))
