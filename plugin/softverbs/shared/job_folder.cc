#include "softverbs/shared/job_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "softverbs/shared/shared_layout.h"

namespace verbena::softverbs {
namespace {

// Process ids are valid only in one pid namespace, so each namespace has a separate folder.
struct Prefix {
  std::string of_user, whole;
};
Prefix make_prefix() {
  struct stat name_space {};
  stat("/proc/self/ns/pid", &name_space);
  const std::string of_user =
      "softverbs-" + std::to_string(kLayoutVersion) + "-" + std::to_string(getuid()) + "-";
  return {of_user, of_user + std::to_string(name_space.st_ino)};
}

// Returns true if this user owns it and no other user may change it.
bool is_ours(const struct stat& status, mode_t kind) {
  return (status.st_mode & S_IFMT) == kind && status.st_uid == getuid() && (status.st_mode & 022) == 0;
}

// Returns the owners by slot; 0 after the end of the file. Uses read(), because accessing a mapping would
// fault if the file became shorter.
std::vector<uint64_t> read_owners(int table) {
  std::vector<DirectorySlot> slots(kProcessSlots);
  [[maybe_unused]] const ssize_t bytes =
      pread(table, static_cast<void*>(slots.data()), slots.size() * sizeof(DirectorySlot), 0);
  std::vector<uint64_t> owners;
  owners.reserve(slots.size());
  for (const DirectorySlot& slot : slots) owners.push_back(slot.owner.load(std::memory_order_relaxed));
  return owners;
}

flock64 make_life(short kind) {
  flock64 life{};
  life.l_type = kind;
  life.l_whence = SEEK_SET;
  life.l_len = 1;
  return life;
}

// Processes of another pid namespace cannot be looked up, but hold the lock of lock_life(). This lock is not
// checked for processes of this namespace, because their forked children hold it too.
bool is_used(const JobFolder& job) {
  if (job.is_near) {
    const std::vector<uint64_t> owners = read_owners(job.table);
    return std::any_of(owners.begin(), owners.end(), is_alive);
  }
  flock64 life = make_life(F_WRLCK);
  return fcntl(job.table, F_OFD_GETLK, &life) != 0 || life.l_type != F_UNLCK;
}

}  // namespace

std::vector<std::string> list_parents(const std::string& chosen) {
  if (!chosen.empty()) return {chosen};
  return {"/dev/shm", "/run/user/" + std::to_string(getuid())};
}

std::string make_folder_name() {
  return make_prefix().whole;
}

int open_folder(int parent, const char* name) {
  const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (fd >= 0 && fstat(fd, &status) == 0 && is_ours(status, S_IFDIR)) return fd;
  const int error = fd >= 0 || errno == ELOOP || errno == ENOTDIR || errno == EACCES ? EPERM : errno;
  if (fd >= 0) close(fd);
  errno = error;
  return -1;
}

int open_table(int folder, int flags) {
  const int fd = openat(folder, kTable, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, 0600);
  struct stat status {};
  if (fd < 0 || (fstat(fd, &status) == 0 && is_ours(status, S_IFREG) && status.st_nlink <= 1)) return fd;
  close(fd);
  errno = EPERM;
  return -1;
}

bool is_table_of(int table, int folder) {
  struct stat opened {
  }, named{};
  if (fstat(table, &opened) != 0 || fstatat(folder, kTable, &named, AT_SYMLINK_NOFOLLOW) != 0) return false;
  return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

bool lock_life(int table) {
  const flock64 life = make_life(F_RDLCK);
  return fcntl(table, F_OFD_SETLK, &life) == 0;
}

void remove_unused(const JobFolder& job) {
  bool is_removed = false;
  // If another process holds the lock, it enters the job, or it checks again after it has released the lock.
  while (!is_removed && !is_used(job) && flock(job.table, LOCK_EX | LOCK_NB) == 0) {
    is_removed = !is_table_of(job.table, job.folder);
    if (!is_removed && !is_used(job)) {
      unlinkat(job.folder, kTable, 0);
      unlinkat(job.parent, job.name, AT_REMOVEDIR);
      is_removed = true;
    }
    flock(job.table, LOCK_UN);
  }
}

void sweep(const std::string& parent) {
  const Prefix prefix = make_prefix();
  DIR* entries = opendir(parent.c_str());
  if (entries == nullptr) return;
  const int parent_fd = dirfd(entries);
  while (const dirent* entry = readdir(entries)) {
    const std::string_view name(entry->d_name);
    if (!name.starts_with(prefix.of_user)) continue;
    const bool is_near = name.starts_with(prefix.whole);
    const int folder = open_folder(parent_fd, entry->d_name);
    if (folder < 0) continue;
    const int table = open_table(folder, 0);
    if (table >= 0) {
      remove_unused({parent_fd, entry->d_name, folder, table, is_near});
      close(table);
    }
    close(folder);
  }
  closedir(entries);
}

uint64_t read_owner(int pid) {
  // Reads the file of the first thread, because qemu-user fakes the file of the process.
  char path[48], text[512];
  snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT || errno == ESRCH) errno = 0;
    return 0;
  }
  const ssize_t length = read(fd, text, sizeof(text) - 1);
  close(fd);
  errno = 0;
  if (length <= 0) return 0;
  text[length] = '\0';
  // The second field is the command in brackets, which may contain anything: count the fields after it.
  const char* field = strrchr(text, ')');
  if (field == nullptr || field[1] == '\0') return 0;
  field += 2;
  const char state = *field;
  uint64_t threads = 0;
  constexpr int kStateField = 3, kThreadsField = 20, kStartField = 22;
  for (int i = kStateField; i < kStartField && field != nullptr; ++i) {
    if (i == kThreadsField) threads = strtoull(field, nullptr, 10);
    field = strchr(field, ' ');
    if (field != nullptr) ++field;
  }
  // A zombie of several threads is a process whose first thread has ended.
  if (field == nullptr || state == 'X' || (state == 'Z' && threads <= 1)) return 0;
  const uint64_t start_ticks = strtoull(field, nullptr, 10);
  return (start_ticks & ((uint64_t{1} << 42) - 1)) << 22 | static_cast<uint64_t>(pid);
}

}  // namespace verbena::softverbs
