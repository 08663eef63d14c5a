// A file that texts for people are added to. Nothing here waits: not for the reader of a pipe either.
#pragma once

#include <string>

#include "base/status.h"

namespace verbena::base {

// With this host's name for %h, this process's number for %p and a percent sign for %%.
std::string expand_path(const std::string& path);

// Adds the text to the end of the file, which is made if there is none (readable by its owner alone: it names
// addresses). Several processes may use one file: each text stays in one piece.
Outcome append_to_file(const std::string& path, const std::string& text);

// Makes the text the whole of the file: whoever reads it finds the old text or the new one. Only a regular
// file is replaced. 0, or the errno; logs nothing, as it may be called again and again.
int replace_file(const std::string& path, const std::string& text, unsigned permissions);

}  // namespace verbena::base
