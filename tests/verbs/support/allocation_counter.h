// Counts the allocations of this program by replacing its operator new.
#pragma once

namespace verbena::verbs {

// So far, in all threads.
int count_allocations();

}  // namespace verbena::verbs
