// Appends readable text to a file, or replaces a file. No call blocks, even if the file is a pipe.
#pragma once

#include <string>

#include "base/status.h"

namespace verbena::base {

// Replaces %h by the host's name, %p by the process id and %% by a percent sign.
std::string expand_path(const std::string& path);

// Appends the text to the file. A new file is readable by its owner alone, because the text contains
// addresses. Several processes may append to one file: each text stays in one piece. Fails for a symbolic
// link, and for a file that is not regular, belongs to another user, has several hard links, or may be
// written by other users.
Outcome append_to_file(const std::string& path, const std::string& text);

// Replaces the content of the file in one step: a reader sees either the old text or the new one. Only a
// regular file is replaced. Returns 0 or the errno. Logs nothing, because it may be called periodically.
int replace_file(const std::string& path, const std::string& text, unsigned permissions);

}  // namespace verbena::base
