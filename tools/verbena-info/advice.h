// Advice to the user, and the exit status. Both depend only on the document's codes. Pure.
#pragma once
#include <string>
#include <vector>

#include "verbena-info/document.h"

namespace verbena::tools::info {

// The most severe first.
std::vector<Advice> list_advice(const Document& document);

// Advice for a port that is not active; empty if it is.
std::string suggest_for_port(const Port& port);

// Advice for a self-test that failed; `with_gpu`: it used GPU memory.
std::string suggest_for_test(TestFault fault, const Port& port, bool with_gpu);

// The exit status for a document, including its checks.
int judge(const Document& document);

}  // namespace verbena::tools::info
