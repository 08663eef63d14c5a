// Loggers for NetPlugin::init: what the plugin says, line by line.
#pragma once
#include <cstdarg>
#include <string>

#include "nccl/abi.h"

namespace verbena::tools {

struct PluginLine {
  abi::LogLevel level;
  std::string text;
  const char* file;  // may be null
  int line;

  bool is_warning() const { return level <= abi::kLogWarn; }
};

// Cut after 2047 bytes.
std::string format_plugin_text(const char* format, va_list arguments);

// Any thread of the plugin's may call it.
template <void (*use)(const PluginLine&)>
void log_plugin_line(abi::LogLevel level, unsigned long /*flags*/, const char* file, int line,
                     const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string text = format_plugin_text(format, arguments);
  va_end(arguments);
  use({level, text, file, line});
}

}  // namespace verbena::tools
