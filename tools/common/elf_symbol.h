#pragma once
#include <cstdint>
#include <string>

namespace verbena::tools {

// A defined data object of a shared object, exported or not.
struct ElfSymbol {
  uint64_t address = 0;  // before relocation: add where the object was loaded
  uint64_t size_bytes = 0;
};

// Reads .symtab, which a stripped file lacks. Throws ToolError that names the file and what is missing.
ElfSymbol find_data_symbol(const std::string& path, const std::string& name);

}  // namespace verbena::tools
