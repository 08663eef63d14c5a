// --check: what works, what does not, and what to do about it.
#pragma once
#include <functional>
#include <string>

#include "verbena-info/document.h"
#include "verbena-info/options.h"

namespace verbena::tools::info {

// Runs all checks; fills "checks": {"what", "with", "status": "ok", "failed" or "skipped", "tests", "detail",
// "try", "wrong_data"}. Each line is told to `show` when it is known.
void run_checks(Json& document, const Options& options, const std::function<void(const Json& check)>& show);

// In columns that are wide enough for the names of the document's devices.
std::string format_check(const Json& document, const Json& check);
// The last line.
std::string format_verdict(const Json& document);
// An exit status.
int judge_checks(const Json& document);

}  // namespace verbena::tools::info
