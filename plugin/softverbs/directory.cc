#include "softverbs/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "softverbs/config.h"

namespace verbena::softverbs {
namespace {

// Process ids are valid only in one pid namespace, so each namespace has a folder of its own.
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

// True if this user owns it and no other user may change it.
bool is_ours(const struct stat& status, mode_t kind) {
  return (status.st_mode & S_IFMT) == kind && status.st_uid == getuid() && (status.st_mode & 022) == 0;
}

// Opens a folder only if it belongs to this user. -1 with errno on failure; EPERM if the folder belongs to
// another user.
int open_folder(int parent, const char* name) {
  const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (fd >= 0 && fstat(fd, &status) == 0 && is_ours(status, S_IFDIR)) return fd;
  const int error = fd >= 0 || errno == ELOOP || errno == ENOTDIR || errno == EACCES ? EPERM : errno;
  if (fd >= 0) close(fd);
  errno = error;
  return -1;
}

constexpr char kTable[] = "processes";

// Opens the table of processes in a folder of ours; -1 with errno on failure.
int open_table(int folder, int flags) {
  const int fd = openat(folder, kTable, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, 0600);
  struct stat status {};
  if (fd < 0 || (fstat(fd, &status) == 0 && is_ours(status, S_IFREG) && status.st_nlink <= 1)) return fd;
  close(fd);
  errno = EPERM;
  return -1;
}

// Whether the open table is still the one in the folder: the last process to leave may have removed it in the
// meantime.
bool is_table_of(int fd, const std::string& folder) {
  struct stat opened {
  }, named{};
  if (fstat(fd, &opened) != 0 || stat((folder + "/" + kTable).c_str(), &named) != 0) return false;
  return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// Opens the table of processes and locks it; -1 with errno on failure.
int open_locked(const std::string& folder) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return -1;
    const int parent = open_folder(AT_FDCWD, folder.c_str());
    if (parent < 0 && errno != ENOENT) return -1;
    if (parent < 0) continue;
    const int fd = open_table(parent, O_CREAT);
    const int error = errno;
    close(parent);
    if (fd < 0 && error != ENOENT) {
      errno = error;
      return -1;
    }
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX) == 0 && is_table_of(fd, folder)) return fd;
    close(fd);
  }
  errno = EAGAIN;
  return -1;
}

// A file lock that shows that this process lives, also to processes of other pid namespaces, which cannot
// look up its process id. The lock belongs to the open file and ends with its last holder, even if that is
// killed.
bool lock_life(int table, short kind) {
  flock64 life{};
  life.l_type = kind;
  life.l_whence = SEEK_SET;
  life.l_len = 1;
  return fcntl(table, F_OFD_SETLK, &life) == 0;
}

// The owners by slot, 0 beyond the end of the file. Uses read(), because a mapping would fault if the file
// became shorter.
std::vector<uint64_t> read_owners(int table) {
  std::vector<DirectorySlot> slots(kProcessSlots);
  [[maybe_unused]] const ssize_t bytes =
      pread(table, static_cast<void*>(slots.data()), slots.size() * sizeof(DirectorySlot), 0);
  std::vector<uint64_t> owners;
  owners.reserve(slots.size());
  for (const DirectorySlot& slot : slots) owners.push_back(slot.owner.load(std::memory_order_relaxed));
  return owners;
}

bool is_anyone_there(int table) {
  const std::vector<uint64_t> owners = read_owners(table);
  return std::any_of(owners.begin(), owners.end(), is_alive);
}

// The table is locked, and no process uses it any more.
void remove_folder(int parent, const char* name, int folder) {
  unlinkat(folder, kTable, 0);
  unlinkat(parent, name, AT_REMOVEDIR);
}

// Removes the files of jobs whose processes were all killed, in this pid namespace or in another, such as a
// container's. Other users may be able to write to `parent`: only files of this user that no other user may
// change are touched.
void sweep(const std::string& parent, const Prefix& prefix) {
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
    if (table >= 0 && flock(table, LOCK_EX | LOCK_NB) == 0 &&
        (is_near ? !is_anyone_there(table) : lock_life(table, F_WRLCK)))
      remove_folder(parent_fd, entry->d_name, folder);
    if (table >= 0) close(table);
    close(folder);
  }
  closedir(entries);
}

}  // namespace

Directory* Directory::open(uint64_t owner, const Accept& accept, Claim& claim) {
  const Prefix prefix = make_prefix();
  auto directory = std::make_unique<Directory>();
  directory->find_place(prefix.whole, [&](const std::string& parent) { sweep(parent, prefix); });
  if (directory->fd_ < 0 || !lock_life(directory->fd_, F_RDLCK) || !directory->map()) {
    const int error = errno;
    warn(
        "%s: cannot make, map or trust the shared tables: %s (set SOFTVERBS_DIR to a folder of your own, the "
        "same "
        "for every process of the job)",
        directory->folder_.c_str(), strerror(error));
    if (directory->fd_ >= 0) close(directory->fd_);
    errno = error;
    return nullptr;
  }
  claim = directory->claim(owner, accept);
  flock(directory->fd_, LOCK_UN);
  return directory.release();
}

// If another user has taken our name in a folder that everybody may write to, we can still start: every
// process of the job notices it and moves to the same other place.
void Directory::find_place(const std::string& name, const std::function<void(const std::string&)>& sweep_in) {
  const Config& config = get_config();
  const std::string own = "/run/user/" + std::to_string(getuid());
  const std::vector<std::string> parents =
      config.directory.empty() ? std::vector<std::string>{"/dev/shm", own} : std::vector{config.directory};
  int error = 0;
  for (const std::string& parent : parents) {
    if (error != 0) {
      const int private_place = open_folder(AT_FDCWD, parent.c_str());
      if (private_place < 0) break;
      close(private_place);
      warn("%s: belongs to another user: using %s", folder_.c_str(), parent.c_str());
    }
    sweep_in(parent);
    folder_ = parent + "/" + name + (config.job.empty() ? "" : "-" + config.job);
    fd_ = open_locked(folder_);
    error = errno;
    if (fd_ >= 0 || error != EPERM) return;
  }
  errno = error;
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
    slots_[slot].segment.store(0, std::memory_order_release);
    slots_[slot].owner.store(owner, std::memory_order_release);
    return {slot, slots_[slot].generation.fetch_add(1) + 1};
  }
  return {kProcessSlots, 0};
}

void Directory::release(uint32_t slot) {
  flock(fd_, LOCK_EX);
  slots_[slot].owner.store(0, std::memory_order_release);
  if (const int folder = open_folder(AT_FDCWD, folder_.c_str()); folder >= 0) {
    if (!is_anyone_there(fd_)) remove_folder(AT_FDCWD, folder_.c_str(), folder);
    close(folder);
  }
  flock(fd_, LOCK_UN);
}

uint64_t read_owner(int pid) {
  // The first thread's file, since qemu-user makes up the process's own one.
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
