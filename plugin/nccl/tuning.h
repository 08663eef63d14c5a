// Connects the tuner with the network: loads the tuning file, and describes the network to the tuner.
#pragma once

#include <memory>

#include "transport/link/nic.h"
#include "tuner/calibration.h"
#include "tuner/guard.h"

namespace verbena::nccl {

// Reads the file that VERBENA_TUNING_FILE names or, if all devices are softverbs, the file that is installed
// with softverbs. The file's transport entries become the defaults of the corresponding settings. A file that
// cannot be used causes one warning. Called when the first communicator begins; `abi_version` is the version
// of its table.
void load_tuning(const transport::NicRegistry& nics, int abi_version);

// The loaded tuning file; null if none was loaded.
std::shared_ptr<const tuner::Calibration> tuning();

// Describes the network at this moment. NCCL initialises a communicator's network before its tuner.
tuner::Offer describe_offer();

}  // namespace verbena::nccl
