// Starts the faults with the first device.
#pragma once

namespace verbena::softverbs {
class Process;
}

namespace verbena::softverbs::faults {

// Called when the first device is opened: makes the process's injector if there is a plan, and starts its
// timed faults. False if SOFTVERBS_FAULTS or SOFTVERBS_RAILS is not valid.
bool start(Process& process);

}  // namespace verbena::softverbs::faults
