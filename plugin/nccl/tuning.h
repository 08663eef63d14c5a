// Where the tuner meets the network: the tuning file, and what the network says of itself.
#pragma once

#include <memory>

#include "transport/link/nic.h"
#include "tuner/calibration.h"
#include "tuner/guard.h"

namespace verbena::nccl {

// Reads the file that VERBENA_TUNING_FILE names, or, where all devices are softverbs, the one that comes with
// it; its transport entries become the defaults of the settings they stand for. A file that cannot be used
// gives one warning. `abi_version`: of the first communicator's table. Called when the first communicator
// begins.
void load_tuning(const transport::NicRegistry& nics, int abi_version);

// What was loaded; null: nothing.
std::shared_ptr<const tuner::Calibration> tuning();

// At this moment: NCCL begins a communicator's network before its tuner.
tuner::Offer describe_offer();

}  // namespace verbena::nccl
