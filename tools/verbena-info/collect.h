#pragma once
#include "verbena-info/document.h"
#include "verbena-info/options.h"

namespace verbena::tools::info {

// Everything about this host. Never throws for what it does not find: the document says so.
Json collect_document(const Options& options);

}  // namespace verbena::tools::info
