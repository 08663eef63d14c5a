// Grids that are launched behind each other by programmatic dependent launch (World::add_grid).
#pragma once

namespace verbena::emulator {

// For each thread of a grid, around its kernel.
void begin_thread();
void end_thread();

}  // namespace verbena::emulator
