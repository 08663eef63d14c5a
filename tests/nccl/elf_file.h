// The dynamic section of a 64-bit ELF file: what it exports, imports and needs.
#pragma once

#include <string>
#include <vector>

namespace verbena::nccl::testing {

struct ElfSymbol {
  std::string name;
  std::string version;  // empty: none
  bool is_defined = false;
  bool is_weak = false;
};

struct ElfFile {
  std::vector<ElfSymbol> symbols;   // global and weak ones of .dynsym
  std::vector<std::string> needed;  // DT_NEEDED
};

// Throws std::runtime_error if the file is not a 64-bit little-endian ELF file with sections.
ElfFile read_elf_file(const std::string& path);

}  // namespace verbena::nccl::testing
