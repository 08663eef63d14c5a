// Starts fault injection when the first device is opened.
#pragma once

namespace verbena::softverbs {
class Process;
}

namespace verbena::softverbs::faults {

// Called when the first device is opened. Creates the process's injector if there is a plan, and starts its
// timed faults. Returns false if SOFTVERBS_FAULTS or SOFTVERBS_RAILS is invalid.
bool start(Process& process);

}  // namespace verbena::softverbs::faults
