#include "nccl/elf_file.h"

#include <elf.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

namespace verbena::nccl::testing {
namespace {

class Image {
 public:
  explicit Image(const std::string& path) {
    bytes_.resize(std::filesystem::file_size(path));
    std::ifstream(path, std::ios::binary).read(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    const auto header = at<Elf64_Ehdr>(0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) {
      throw std::runtime_error(path + " is not a 64-bit ELF file");
    }
    for (unsigned i = 0; i < header.e_shnum; ++i) {
      sections_.push_back(at<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
    }
  }

  template <typename T>
  T at(size_t offset) const {
    T value;
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T))
      throw std::runtime_error("truncated ELF file");
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }
  // A zeroed header if there is none: a section without entries.
  Elf64_Shdr find_section(uint32_t type) const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == type) return section;
    }
    return {};
  }
  std::string text(const Elf64_Shdr& owner, size_t offset) const {
    const Elf64_Shdr& strings = sections_.at(owner.sh_link);
    if (offset >= strings.sh_size) throw std::runtime_error("a name outside its string table");
    return bytes_.data() + strings.sh_offset + offset;
  }

 private:
  std::vector<char> bytes_;
  std::vector<Elf64_Shdr> sections_;
};

// The names behind the numbers that .gnu.version gives imported symbols.
std::map<unsigned, std::string> read_imported_versions(const Image& image) {
  std::map<unsigned, std::string> names;
  const Elf64_Shdr section = image.find_section(SHT_GNU_verneed);
  size_t need_offset = section.sh_offset;
  for (unsigned i = 0; i < section.sh_info; ++i) {
    const auto need = image.at<Elf64_Verneed>(need_offset);
    size_t entry_offset = need_offset + need.vn_aux;
    for (unsigned j = 0; j < need.vn_cnt; ++j) {
      const auto entry = image.at<Elf64_Vernaux>(entry_offset);
      names[entry.vna_other] = image.text(section, entry.vna_name);
      entry_offset += entry.vna_next;
    }
    need_offset += need.vn_next;
  }
  return names;
}

}  // namespace

ElfFile read_elf_file(const std::string& path) {
  const Image image(path);
  ElfFile file;
  const std::map<unsigned, std::string> versions = read_imported_versions(image);
  const Elf64_Shdr symbols = image.find_section(SHT_DYNSYM), numbers = image.find_section(SHT_GNU_versym);
  for (size_t i = 1; i < symbols.sh_size / sizeof(Elf64_Sym); ++i) {
    const auto symbol = image.at<Elf64_Sym>(symbols.sh_offset + i * sizeof(Elf64_Sym));
    const unsigned binding = ELF64_ST_BIND(symbol.st_info);
    if (binding == STB_LOCAL) continue;
    const unsigned number =
        numbers.sh_size == 0 ? 0 : image.at<Elf64_Versym>(numbers.sh_offset + i * 2) & 0x7fffu;
    const auto version = versions.find(number);
    file.symbols.push_back({image.text(symbols, symbol.st_name),
                            version == versions.end() ? "" : version->second, symbol.st_shndx != SHN_UNDEF,
                            binding == STB_WEAK});
  }
  const Elf64_Shdr dynamic = image.find_section(SHT_DYNAMIC);
  for (size_t i = 0; i < dynamic.sh_size / sizeof(Elf64_Dyn); ++i) {
    const auto entry = image.at<Elf64_Dyn>(dynamic.sh_offset + i * sizeof(Elf64_Dyn));
    if (entry.d_tag == DT_NEEDED) file.needed.push_back(image.text(dynamic, entry.d_un.d_val));
  }
  return file;
}

}  // namespace verbena::nccl::testing
