// Pieces that the text's sections share.
#pragma once
#include <string>

#include "verbena-info/document.h"

namespace verbena::tools::info {

inline constexpr size_t kLineColumns = 120;

std::string pad(const std::string& text, size_t width);
// Breaks lines between words; those after the first begin at `first_column`.
std::string wrap(const std::string& text, size_t first_column, size_t width);
// "    label         text\n"; nothing where there is no text.
std::string format_fact(const std::string& label, const std::string& text);
// The words of an array, separated by `comma`.
std::string join(const Json& words, const std::string& comma = ", ");
// [7,8,9,12] as "v7 to v9, v12".
std::string format_versions(const Json& versions);

std::string format_devices(const Json& document, bool verbose);
std::string format_gpus(const Json& document);
std::string format_nccl(const Json& document);
std::string format_parameters(const Json& document, bool all);

}  // namespace verbena::tools::info
