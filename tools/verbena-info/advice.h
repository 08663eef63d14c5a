#pragma once
#include <string>

#include "verbena-info/document.h"

namespace verbena::tools::info {

// What a person should do next, the gravest first, from what the document says.
void add_advice(Json& document);

// What to do about a port that is not active; empty where it is.
std::string suggest_for_port(const Json& device);

// Of a document without anything wrong 0; otherwise the tools' exit status.
int judge(const Json& document);

}  // namespace verbena::tools::info
