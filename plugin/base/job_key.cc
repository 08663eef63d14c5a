#include "base/job_key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/parameters.h"

namespace verbena::base {
namespace {

constexpr size_t kMinBytes = 16, kMaxBytes = 4096;
constexpr mode_t kNotTheOwner = S_IRWXG | S_IRWXO;

std::shared_ptr<const HmacKey>& current_key() {
  static std::shared_ptr<const HmacKey> key;
  return key;
}

Outcome check_file(int fd, const char* path) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    return fail_errno(Status::kSystem, errno, "job key: the file %s (VERBENA_JOB_KEY_FILE) cannot be read",
                      path);
  }
  if (!S_ISREG(status.st_mode)) {
    return fail(Status::kInvalidUsage, "job key: %s (VERBENA_JOB_KEY_FILE) is not a regular file", path);
  }
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    return fail(Status::kInvalidUsage,
                "job key: the file %s (VERBENA_JOB_KEY_FILE) belongs to user %u. The file must belong to "
                "this user (%u) or to root, because the owner can read and change the key",
                path, static_cast<unsigned>(status.st_uid), static_cast<unsigned>(geteuid()));
  }
  if ((status.st_mode & kNotTheOwner) == 0) return {};
  return fail(Status::kInvalidUsage,
              "job key: users other than the owner may read or write the file %s (VERBENA_JOB_KEY_FILE, mode "
              "%04o). Set the mode of the file to 0600 or 0400",
              path, static_cast<unsigned>(status.st_mode & 07777));
}

// Reads the first bytes of the file: one more than a valid file with a final newline has, to detect a longer
// file. Reads into the caller's buffer, so that no freed memory has a copy of the secret.
Result<size_t> read_file(int fd, std::span<uint8_t> into, const char* path) {
  size_t length_bytes = 0;
  while (length_bytes < into.size()) {
    const ssize_t count = read(fd, into.data() + length_bytes, into.size() - length_bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return fail_errno(Status::kSystem, errno, "job key: the file %s (VERBENA_JOB_KEY_FILE) cannot be read",
                        path);
    }
    if (count == 0) break;
    length_bytes += static_cast<size_t>(count);
  }
  return length_bytes;
}

Result<HmacKey> make_key(std::span<const uint8_t> content, const char* path) {
  if (!content.empty() && content.back() == '\n') content = content.first(content.size() - 1);
  if (content.size() >= kMinBytes && content.size() <= kMaxBytes) return HmacKey::create(content);
  return fail(Status::kInvalidUsage,
              "job key: the key in the file %s (VERBENA_JOB_KEY_FILE) has too %s bytes. A key must have %zu "
              "to %zu bytes, not counting a final newline",
              path, content.size() < kMinBytes ? "few" : "many", kMinBytes, kMaxBytes);
}

Result<HmacKey> read_key(const char* path) {
  // Non-blocking, because the file may be a pipe.
  const FileDescriptor fd(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    return fail_errno(Status::kInvalidUsage, errno,
                      "job key: the file %s (VERBENA_JOB_KEY_FILE) cannot be opened", path);
  }
  if (auto outcome = check_file(fd.get(), path); !outcome) return outcome.error();
  std::vector<uint8_t> buffer(kMaxBytes + 2);
  const auto length_bytes = read_file(fd.get(), buffer, path);
  Result<HmacKey> key = length_bytes ? make_key(std::span(buffer).first(*length_bytes), path)
                                     : Result<HmacKey>(length_bytes.error());
  wipe(buffer);
  return key;
}

Error fail_without_key() {
  return fail(Status::kInvalidUsage,
              "encryption: VERBENA_ENCRYPTION=1 needs a job key. Set VERBENA_JOB_KEY_FILE to the path of the "
              "key file");
}

}  // namespace

Outcome load_job_key() {
  current_key().reset();
  const std::string& path = parameters().job_key_file;
  if (path.empty() && parameters().encryption) return fail_without_key();
  if (path.empty()) return {};
  auto key = read_key(path.c_str());
  if (!key) return key.error();
  current_key() = std::make_shared<const HmacKey>(std::move(*key));
  return {};
}

Result<std::shared_ptr<const HmacKey>> job_key() {
  if (current_key() == nullptr && parameters().job_key_file.empty() && parameters().encryption)
    return fail_without_key();
  if (current_key() != nullptr || parameters().job_key_file.empty()) return current_key();
  return fail(
      Status::kInvalidUsage,
      "job key: the file %s (VERBENA_JOB_KEY_FILE) was not loaded. An earlier line of the log says why",
      parameters().job_key_file.c_str());
}

Outcome encrypt_if_asked(Socket& socket, ConnectionEnd end) {
  if (!parameters().encryption) return {};
  auto key = job_key();
  if (!key) return key.error();
  return socket.encrypt(std::move(*key), end);
}

}  // namespace verbena::base
