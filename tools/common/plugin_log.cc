#include "common/plugin_log.h"

#include <cstdio>

namespace verbena::tools {

std::string format_plugin_text(const char* format, va_list arguments) {
  char text[2048];
  return std::vsnprintf(text, sizeof text, format, arguments) < 0 ? format : text;
}

}  // namespace verbena::tools
