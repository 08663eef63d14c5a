#pragma once
#include <string>

namespace verbena::tools {

// As text, or as an attribute in double quotes, of HTML, SVG or XML. Control characters, which XML does not
// have, are left out.
std::string escape_markup(const std::string& text);

}  // namespace verbena::tools
