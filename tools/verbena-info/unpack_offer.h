// Whether NCCL is offered receives that the GPU unpacks, and why.
#pragma once
#include "verbena-info/document.h"

namespace verbena::tools::info {

// {"offered", "why"} from the document's "nccl_view" and "parameters".
Json explain_unpack(const Json& document);

}  // namespace verbena::tools::info
