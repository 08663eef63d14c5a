#include "base/dump_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/file_descriptor.h"
#include "base/log.h"

namespace verbena::base {

std::string expand_path(const std::string& path) {
  std::string expanded;
  for (size_t i = 0; i < path.size(); ++i) {
    const char next = path[i] == '%' && i + 1 < path.size() ? path[i + 1] : '\0';
    if (next == 'h') {
      char host[256] = {};
      expanded += gethostname(host, sizeof(host) - 1) == 0 ? host : "host";
    } else if (next == 'p') {
      expanded += std::to_string(getpid());
    } else if (next == '%') {
      expanded += '%';
    } else {
      expanded += path[i];
      continue;
    }
    ++i;
  }
  return expanded;
}

namespace {

// Checks the owner and the number of links: in a folder that all users may write to, another user may have
// created the file, or a link to a file of this user.
bool is_ours_alone(const struct stat& entry) {
  return S_ISREG(entry.st_mode) && entry.st_uid == geteuid() && entry.st_nlink == 1 &&
         (entry.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Writes everything in one call, so that texts of several processes do not mix.
int write_all(int file, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t now = ::write(file, text.data() + written, text.size() - written);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return now == 0 ? EIO : errno;
    written += static_cast<size_t>(now);
  }
  return 0;
}

}  // namespace

Outcome append_to_file(const std::string& path, const std::string& text) {
  const FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
             S_IRUSR | S_IWUSR));
  if (!file) return fail_errno(Status::kSystem, errno, "dump: cannot open %s (VERBENA_DUMP)", path.c_str());
  struct stat entry {};
  if (::fstat(file.get(), &entry) != 0 || !is_ours_alone(entry)) {
    return fail(
        Status::kSystem,
        "dump: cannot write to %s (VERBENA_DUMP), because the file is not safe to write to. It must be a "
        "regular file that belongs to this user, is not writable for other users, and has only one hard link",
        path.c_str());
  }
  if (const int error = write_all(file.get(), text); error != 0)
    return fail_errno(Status::kSystem, error, "dump: cannot write to %s (VERBENA_DUMP)", path.c_str());
  return {};
}

int replace_file(const std::string& path, const std::string& text, unsigned permissions) {
  struct stat there {};
  if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) return ENOTSUP;
  // Other users may write to the folder, so the temporary name cannot be guessed, and the file must not exist
  // yet.
  uint64_t unguessable = 0;
  if (getrandom(&unguessable, sizeof(unguessable), GRND_NONBLOCK) != sizeof(unguessable)) return EAGAIN;
  const std::string fresh = path + "." + std::to_string(unguessable) + ".tmp";
  const FileDescriptor file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, permissions));
  if (!file) return errno;
  int error = write_all(file.get(), text);
  if (error == 0 && ::rename(fresh.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(fresh.c_str());
  return error;
}

}  // namespace verbena::base
