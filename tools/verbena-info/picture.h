// A picture of GPUs, NICs and rails.
#pragma once
#include <string>

#include "verbena-info/document.h"

namespace verbena::tools::info {

// SVG: NUMA nodes as frames, PCI switches inside, GPUs and NICs inside of these; below them the networks that
// the rails lead to, and between GPUs and NICs which NIC is nearest to which GPU.
std::string draw_topology(const Json& document);

}  // namespace verbena::tools::info
