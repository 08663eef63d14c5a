#pragma once
#include "verbena-info/document.h"

namespace verbena::tools::info {

// What a person should do next, the gravest first, from what the document says.
void add_advice(Json& document);

// Of a document without anything wrong 0; otherwise the tools' exit status.
int judge(const Json& document);

}  // namespace verbena::tools::info
