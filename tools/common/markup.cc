#include "common/markup.h"

namespace verbena::tools {

std::string escape_markup(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '&') {
      escaped += "&amp;";
    } else if (letter == '<') {
      escaped += "&lt;";
    } else if (letter == '>') {
      escaped += "&gt;";
    } else if (letter == '"') {
      escaped += "&quot;";
    } else if (static_cast<unsigned char>(letter) >= ' ' || letter == '\n' || letter == '\t') {
      escaped += letter;
    }
  }
  return escaped;
}

}  // namespace verbena::tools
