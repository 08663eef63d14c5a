#include "softverbs/shared/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "softverbs/shared/config.h"
#include "softverbs/shared/job_folder.h"

namespace verbena::softverbs {
namespace {

// Opens the table of processes and locks it, so that nobody removes it; -1 with errno on failure.
int open_locked(const std::string& folder) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return -1;
    const int parent = open_folder(AT_FDCWD, folder.c_str());
    if (parent < 0 && errno != ENOENT) return -1;
    if (parent < 0) continue;
    const int fd = open_table(parent, O_CREAT);
    const int error = errno;
    const bool is_there = fd >= 0 && flock(fd, LOCK_SH) == 0 && is_table_of(fd, parent);
    close(parent);
    if (is_there) return fd;
    if (fd >= 0) {
      close(fd);
    } else if (error != ENOENT) {
      errno = error;
      return -1;
    }
  }
  errno = EAGAIN;
  return -1;
}

}  // namespace

Directory* Directory::open(uint64_t owner, const Accept& accept, Claim& claim) {
  auto directory = std::make_unique<Directory>();
  directory->find_place();
  if (directory->fd_ < 0 || !lock_life(directory->fd_) || !directory->map()) {
    const int error = errno;
    warn(
        "%s: the tables that softverbs shares between processes cannot be created or mapped, or other users "
        "could change the tables: %s. Set SOFTVERBS_DIR, for every process of the job, to the same folder "
        "that you own",
        directory->folder_.c_str(), strerror(error));
    if (directory->fd_ >= 0) close(directory->fd_);
    errno = error;
    return nullptr;
  }
  claim = directory->claim(owner, accept);
  flock(directory->fd_, LOCK_UN);
  return directory.release();
}

// Another user may have taken the directory's name in a folder that everybody can write to. The job can
// still start: each of its processes detects this, and all of them use the same other folder.
void Directory::find_place() {
  const Config& config = get_config();
  int error = 0;
  for (const std::string& parent : list_parents(config.directory)) {
    if (error != 0) {
      const int private_place = open_folder(AT_FDCWD, parent.c_str());
      if (private_place < 0) break;
      close(private_place);
      warn("%s belongs to another user, so softverbs uses %s", folder_.c_str(), parent.c_str());
    }
    sweep(parent);
    folder_ = parent + "/" + make_folder_name() + (config.job.empty() ? "" : "-" + config.job);
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
    uint64_t present = get_owner(slot);
    if (present != 0 && is_alive(present)) continue;
    if (!slots_[slot].owner.compare_exchange_strong(present, owner)) continue;
    if (!accept(slot)) {
      slots_[slot].owner.store(0, std::memory_order_release);
      continue;
    }
    // Until this store, the slot has the former owner's descriptor. Peers check what they open by it.
    slots_[slot].segment.store(0, std::memory_order_release);
    return {slot, slots_[slot].generation.fetch_add(1) + 1};
  }
  return {kProcessSlots, 0};
}

void Directory::release(uint32_t slot) {
  slots_[slot].owner.store(0, std::memory_order_release);
  const int folder = open_folder(AT_FDCWD, folder_.c_str());
  if (folder < 0) return;
  remove_unused({AT_FDCWD, folder_.c_str(), folder, fd_, true});
  close(folder);
}

}  // namespace verbena::softverbs
