// Keeps this library loaded until the process ends, whoever closes it: for what cannot be told to end, such
// as a signal's handler, or a thread that a forgotten connection needs.
#pragma once

namespace verbena::base {

void pin_library();

}  // namespace verbena::base
