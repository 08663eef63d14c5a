#include "common/nccl_ib.h"

#include <dlfcn.h>
#include <link.h>

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

constexpr const char* kTableSymbol = "ncclNetIb";
// The first member of every table is the transport's name.
constexpr const char* kTransportName = "IB";

struct KnownReleases {
  int first_minor, last_minor;  // of NCCL 2
  int table_version;
};
constexpr KnownReleases kKnownReleases[] = {{19, 19, 7},  {20, 23, 8},  {24, 25, 9},
                                            {26, 27, 10}, {28, 29, 11}, {30, 30, 12}};

std::string format_release(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

const link_map& find_link_map(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) throw ToolError(std::string("dlinfo: ") + dlerror());
  return *map;
}

int read_version(void* handle) {
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(handle, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0)
    throw ToolError("ncclGetVersion is missing or fails");
  return version;
}

}  // namespace

int find_table_version(int version) {
  for (const KnownReleases& known : kKnownReleases) {
    const int minor = version / 100 % 100;
    if (version / 10000 == 2 && minor >= known.first_minor && minor <= known.last_minor)
      return known.table_version;
  }
  throw ToolError(
      "NCCL " + format_release(version) +
      " is not supported, because this tool knows the table of the IB transport only for NCCL 2.19 to 2.30");
}

// Stays loaded, because the threads that NCCL starts for asynchronous events never end.
NcclIbLibrary::NcclIbLibrary(const std::string& path)
    : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
  if (handle_ == nullptr) throw ToolError(std::string("cannot load NCCL: ") + dlerror());
  const int version = read_version(handle_);
  release_ = format_release(version);
  table_version_ = find_table_version(version);
}

std::unique_ptr<NetPlugin> NcclIbLibrary::adapt() const {
  const link_map& map = find_link_map(handle_);
  const ElfSymbol symbol = find_data_symbol(map.l_name, kTableSymbol);
  const size_t expected_bytes = size_of_table(table_version_);
  // With another layout than that of the release's headers we would call arbitrary addresses.
  if (symbol.size_bytes != expected_bytes) {
    throw ToolError("NCCL " + release_ + ": " + kTableSymbol + " has " + std::to_string(symbol.size_bytes) +
                    " bytes, but a table v" + std::to_string(table_version_) + " has " +
                    std::to_string(expected_bytes));
  }
  const auto* const table = reinterpret_cast<const void*>(map.l_addr + symbol.address);
  const char* const name = *static_cast<const char* const*>(table);
  if (name == nullptr || std::strcmp(name, kTransportName) != 0) {
    throw ToolError("NCCL " + release_ + ": " + kTableSymbol +
                    " does not begin with the name of the IB transport");
  }
  return adapt_table(table, table_version_);
}

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
  if (elf == nullptr || elf_kind(elf.get()) != ELF_K_ELF) throw ToolError(path + " is not an ELF file");
  GElf_Shdr header;
  Elf_Scn* const section = find_symbol_table(elf.get(), header);
  if (section == nullptr) throw ToolError(path + " has no .symtab section, because the library was stripped");
  Elf_Data* const data = elf_getdata(section, nullptr);
  if (data == nullptr) throw ToolError(path + ": " + elf_errmsg(-1));
  const auto symbol = find_in(elf.get(), header, data, name);
  if (!symbol) throw ToolError(path + " has no data symbol " + name);
  return *symbol;
}

}  // namespace verbena::tools
