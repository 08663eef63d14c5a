// The document as people read it.
#pragma once
#include <string>

#include "verbena-info/document.h"

namespace verbena::tools::info {

struct TextOptions {
  bool all_parameters = false;
  bool verbose = false;
};

std::string format_document(const Json& document, const TextOptions& options);

// "400 Gb/s"
std::string format_speed(uint64_t mbps);
// One that may be null: "?".
std::string show(const Json& value);
// "what\n  try: remedy\n" for each.
std::string format_advice(const Json& document);

}  // namespace verbena::tools::info
