#include "common/elf_symbol.h"

#include <fcntl.h>
#include <gelf.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "base/file_descriptor.h"
#include "common/error.h"

namespace verbena::tools {
namespace {

struct ElfDeleter {
  void operator()(Elf* elf) const { elf_end(elf); }
};
using ElfHandle = std::unique_ptr<Elf, ElfDeleter>;

Elf_Scn* find_symbol_table(Elf* elf, GElf_Shdr& header) {
  for (Elf_Scn* section = elf_nextscn(elf, nullptr); section != nullptr;
       section = elf_nextscn(elf, section)) {
    if (gelf_getshdr(section, &header) != nullptr && header.sh_type == SHT_SYMTAB) return section;
  }
  return nullptr;
}

std::optional<ElfSymbol> find_in(Elf* elf, const GElf_Shdr& header, Elf_Data* data, const std::string& name) {
  const uint64_t count = header.sh_entsize == 0 ? 0 : header.sh_size / header.sh_entsize;
  for (uint64_t index = 0; index < count; ++index) {
    GElf_Sym symbol;
    if (gelf_getsym(data, static_cast<int>(index), &symbol) == nullptr) break;
    if (GELF_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_shndx == SHN_UNDEF) continue;
    const char* const text = elf_strptr(elf, header.sh_link, symbol.st_name);
    if (text != nullptr && name == text) return ElfSymbol{symbol.st_value, symbol.st_size};
  }
  return std::nullopt;
}

}  // namespace

ElfSymbol find_data_symbol(const std::string& path, const std::string& name) {
  const base::FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw ToolError("cannot open " + path + ": " + std::strerror(errno));
  elf_version(EV_CURRENT);
  const ElfHandle elf(elf_begin(file.get(), ELF_C_READ_MMAP, nullptr));
  if (elf == nullptr || elf_kind(elf.get()) != ELF_K_ELF) throw ToolError(path + " is no ELF file");
  GElf_Shdr header;
  Elf_Scn* const section = find_symbol_table(elf.get(), header);
  if (section == nullptr) throw ToolError(path + " has no .symtab: it was stripped");
  Elf_Data* const data = elf_getdata(section, nullptr);
  if (data == nullptr) throw ToolError(path + ": " + elf_errmsg(-1));
  const auto symbol = find_in(elf.get(), header, data, name);
  if (!symbol) throw ToolError(path + " has no data symbol " + name);
  return *symbol;
}

}  // namespace verbena::tools
