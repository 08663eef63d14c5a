#include "softverbs/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "softverbs/config.h"

namespace verbena::softverbs {
namespace {

// Process numbers mean something only inside one pid namespace, so each has its own folder.
std::string make_prefix() {
  struct stat name_space {};
  stat("/proc/self/ns/pid", &name_space);
  char name[160];
  snprintf(name, sizeof(name), "softverbs-%u-%u-%lu", kLayoutVersion, getuid(), name_space.st_ino);
  return name;
}

// Makes the folder, and refuses one that another user could have prepared.
int make_folder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return errno;
  struct stat status {};
  if (lstat(folder.c_str(), &status) != 0) return errno;
  const bool is_ours = S_ISDIR(status.st_mode) && status.st_uid == getuid() && (status.st_mode & 022) == 0;
  return is_ours ? 0 : EPERM;
}

// The file behind `fd` is still the one at `path`: the last process to leave may have removed it meanwhile.
bool is_file_at(int fd, const std::string& path) {
  struct stat opened {
  }, named{};
  if (fstat(fd, &opened) != 0 || stat(path.c_str(), &named) != 0) return false;
  return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// Opens the table of processes and locks it; -1 and errno.
int open_locked(const std::string& folder) {
  const std::string path = folder + "/processes";
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    if (const int error = make_folder(folder); error != 0) {
      errno = error;
      return -1;
    }
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 && errno != ENOENT) return -1;
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX) == 0 && is_file_at(fd, path)) return fd;
    close(fd);
  }
  errno = EAGAIN;
  return -1;
}

}  // namespace

Directory* Directory::open(uint64_t owner, const Accept& accept, Claim& claim) {
  const Config& config = get_config();
  const std::string prefix = make_prefix();
  sweep(config.directory, prefix);
  auto directory = std::make_unique<Directory>();
  directory->folder_ = config.directory + "/" + prefix + (config.job.empty() ? "" : "-" + config.job);
  directory->fd_ = open_locked(directory->folder_);
  if (directory->fd_ < 0 || !directory->map()) {
    const int error = errno;
    warn("%s: cannot make, map or trust the shared tables: %s (set SOFTVERBS_DIR to a folder of your own)",
         directory->folder_.c_str(), strerror(error));
    if (directory->fd_ >= 0) close(directory->fd_);
    errno = error;
    return nullptr;
  }
  claim = directory->claim(owner, accept);
  flock(directory->fd_, LOCK_UN);
  return directory.release();
}

bool Directory::map() {
  constexpr size_t kBytes = kProcessSlots * sizeof(DirectorySlot);
  errno = posix_fallocate(fd_, 0, kBytes);
  if (errno != 0) return false;
  void* slots = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (slots == MAP_FAILED) return false;
  slots_ = static_cast<DirectorySlot*>(slots);
  return true;
}

Directory::Claim Directory::claim(uint64_t owner, const Accept& accept) {
  for (uint32_t slot = 0; slot < kProcessSlots; ++slot) {
    const uint64_t present = get_owner(slot);
    if (present != 0 && is_alive(present)) continue;
    if (!accept(slot)) continue;
    if (present != 0) unlink(get_segment_path(slot, present).c_str());
    slots_[slot].owner.store(owner, std::memory_order_release);
    return {slot, slots_[slot].generation.fetch_add(1) + 1};
  }
  return {kProcessSlots, 0};
}

void Directory::release(uint32_t slot, uint64_t owner) {
  flock(fd_, LOCK_EX);
  unlink(get_segment_path(slot, owner).c_str());
  slots_[slot].owner.store(0, std::memory_order_release);
  remove_if_empty();
  flock(fd_, LOCK_UN);
}

// With the file locked.
bool Directory::remove_if_empty() {
  for (uint32_t slot = 0; slot < kProcessSlots; ++slot) {
    if (get_owner(slot) == 0) continue;
    if (is_alive(get_owner(slot))) return false;
    unlink(get_segment_path(slot, get_owner(slot)).c_str());
  }
  unlink((folder_ + "/processes").c_str());
  return rmdir(folder_.c_str()) == 0;
}

// Removes what jobs left of which all processes were killed.
void Directory::sweep(const std::string& parent, const std::string& prefix) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    if (entry.path().filename().string().rfind(prefix, 0) != 0) continue;
    Directory other;
    other.folder_ = entry.path().string();
    other.fd_ = ::open((other.folder_ + "/processes").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (other.fd_ < 0) continue;
    if (flock(other.fd_, LOCK_EX | LOCK_NB) == 0 && other.map()) {
      other.remove_if_empty();
      munmap(other.slots_, kProcessSlots * sizeof(DirectorySlot));
    }
    close(other.fd_);
  }
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
