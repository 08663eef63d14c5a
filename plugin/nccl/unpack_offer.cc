#include "nccl/unpack_offer.h"

#include "base/parameters.h"
#include "nccl/tuning.h"

namespace verbena::nccl {

bool offers_unpack() {
  if (base::parameters().unpack != base::UnpackOffer::kAuto)
    return base::parameters().unpack == base::UnpackOffer::kAlways;
  const auto measured = tuning();
  return measured != nullptr && measured->transport.unpack.value_or(false);
}

}  // namespace verbena::nccl
