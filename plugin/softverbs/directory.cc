#include "softverbs/directory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "softverbs/config.h"

namespace verbena::softverbs {
namespace {

// Process numbers mean something only inside one pid namespace, so each has its own folder.
std::string make_folder_name() {
  struct stat name_space {};
  stat("/proc/self/ns/pid", &name_space);
  char name[160];
  snprintf(name, sizeof(name), "/softverbs-%u-%u-%lu", kLayoutVersion, getuid(), name_space.st_ino);
  const Config& config = get_config();
  return config.directory + name + (config.job.empty() ? "" : "-" + config.job);
}

// Makes the folder, and refuses one that another user could have prepared.
int make_folder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return errno;
  struct stat status {};
  if (lstat(folder.c_str(), &status) != 0) return errno;
  const bool is_ours = S_ISDIR(status.st_mode) && status.st_uid == getuid() && (status.st_mode & 022) == 0;
  return is_ours ? 0 : EPERM;
}

DirectorySlot* map_slots(const std::string& path) {
  constexpr size_t kBytes = kProcessSlots * sizeof(DirectorySlot);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  void* slots = MAP_FAILED;
  const int error = posix_fallocate(fd, 0, kBytes);
  if (error == 0) slots = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int cause = error != 0 ? error : errno;
  ::close(fd);
  errno = cause;
  return slots == MAP_FAILED ? nullptr : static_cast<DirectorySlot*>(slots);
}

}  // namespace

Directory* Directory::open() {
  auto* directory = new Directory;
  directory->folder_ = make_folder_name();
  if (const int error = make_folder(directory->folder_); error != 0) {
    warn("%s: cannot make or trust the folder of the shared tables: %s (set SOFTVERBS_DIR)",
         directory->folder_.c_str(), strerror(error));
    delete directory;
    errno = error;
    return nullptr;
  }
  directory->slots_ = map_slots(directory->folder_ + "/processes");
  if (directory->slots_ != nullptr) return directory;
  const int error = errno;
  warn("%s: cannot map the table of processes: %s", directory->folder_.c_str(), strerror(error));
  delete directory;
  errno = error;
  return nullptr;
}

Directory::Claim Directory::claim(uint64_t owner) {
  for (uint32_t slot = 0; slot < kProcessSlots; ++slot) {
    uint64_t present = slots_[slot].owner.load(std::memory_order_acquire);
    if (present != 0 && is_alive(present)) continue;
    if (!slots_[slot].owner.compare_exchange_strong(present, owner)) continue;
    if (present != 0) unlink(get_segment_path(slot, present).c_str());
    return {slot, slots_[slot].generation.fetch_add(1) + 1};
  }
  return {kProcessSlots, 0};
}

void Directory::release(uint32_t slot, uint64_t owner) {
  unlink(get_segment_path(slot, owner).c_str());
  slots_[slot].owner.compare_exchange_strong(owner, 0);
}

std::string Directory::get_segment_path(uint32_t slot, uint64_t owner) const {
  char name[64];
  snprintf(name, sizeof(name), "/%u-%016lx", slot, owner);
  return folder_ + name;
}

uint64_t read_owner(int pid) {
  char path[32], text[512];
  snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t length = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (length <= 0) return 0;
  text[length] = '\0';
  // The second field is the command in brackets and may hold anything; fields are counted behind it.
  const char* field = strrchr(text, ')');
  if (field == nullptr || field[1] == '\0') return 0;
  field += 2;
  if (*field == 'Z' || *field == 'X') return 0;
  constexpr int kStateField = 3, kStartField = 22;
  for (int i = kStateField; i < kStartField && field != nullptr; ++i) {
    field = strchr(field, ' ');
    if (field != nullptr) ++field;
  }
  if (field == nullptr) return 0;
  const uint64_t start_ticks = strtoull(field, nullptr, 10);
  return (start_ticks & ((uint64_t{1} << 42) - 1)) << 22 | static_cast<uint64_t>(pid);
}

}  // namespace verbena::softverbs
