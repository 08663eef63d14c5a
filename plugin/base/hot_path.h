// For the few functions that every message runs through: no stack protector, whose check on the way in and
// out would cost each of them about ten instructions. They have a local array, or a
// local whose address they pass on; none of them copies into it what a peer or a caller sizes: each index is
// a constant or below the array's own extent. Anything else belongs into a function without this.
#pragma once

#define VERBENA_HOT_PATH __attribute__((no_stack_protector))
