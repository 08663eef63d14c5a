#include "verbena-info/table_names.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <charconv>
#include <string_view>

#include "base/file_descriptor.h"

namespace verbena::tools::info {
namespace {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const base::FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat facts {};
    if (file.get() < 0 || fstat(file.get(), &facts) != 0 || facts.st_size <= 0) return;
    length_bytes_ = static_cast<size_t>(facts.st_size);
    data_ = mmap(nullptr, length_bytes_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  }
  ~MappedFile() {
    if (data_ != MAP_FAILED) munmap(data_, length_bytes_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view text() const {
    return data_ == MAP_FAILED ? std::string_view()
                               : std::string_view(static_cast<char*>(data_), length_bytes_);
  }

 private:
  void* data_ = MAP_FAILED;
  size_t length_bytes_ = 0;
};

}  // namespace

std::set<int> read_table_names(const std::string& path, const std::string& prefix) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  std::set<int> versions;
  for (size_t at = text.find(prefix); at != std::string_view::npos; at = text.find(prefix, at + 1)) {
    const char* const begin = text.data() + at + prefix.size();
    int version = 0;
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), version);
    if (error == std::errc()) versions.insert(version);
  }
  return versions;
}

Json choose_table(const std::set<int>& wanted, const Json& exported) {
  for (auto version = wanted.rbegin(); version != wanted.rend(); ++version) {
    for (const Json& have : exported) {
      if (have == *version) return *version;
    }
  }
  return nullptr;
}

}  // namespace verbena::tools::info
