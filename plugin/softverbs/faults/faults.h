#pragma once

namespace verbena::softverbs {
class Process;
}

namespace verbena::softverbs::faults {

// At the first opened device: makes the process's injector if there is a plan, and begins what goes by time.
// False when SOFTVERBS_FAULTS or SOFTVERBS_RAILS cannot be understood.
bool start(Process& process);

}  // namespace verbena::softverbs::faults
