#pragma once

#include <cstdio>

#include "common/net_plugin.h"

namespace verbena::tools {

inline void print_warning(const PluginLine& line) {
  if (line.is_warning()) std::fprintf(stderr, "%s\n", line.text.c_str());
}

}  // namespace verbena::tools
