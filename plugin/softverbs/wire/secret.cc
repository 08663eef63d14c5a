#include "softverbs/wire/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "crypto/libcrypto.h"
#include "softverbs/shared/config.h"
#include "softverbs/shared/random.h"

namespace verbena::softverbs::wire {
namespace {

constexpr size_t kMinBytes = 16, kMaxBytes = 4096;

using Mac = std::array<uint8_t, kMacBytes>;

struct Secret {
  std::vector<uint8_t> key;

  bool compute(std::initializer_list<std::span<const uint8_t>> parts, Mac& mac) const {
    std::vector<uint8_t> text;
    for (const auto part : parts) text.insert(text.end(), part.begin(), part.end());
    unsigned length = 0;
    const auto& api = *crypto::find_libcrypto();
    return api.hmac(api.sha256(), key.data(), static_cast<int>(key.size()), text.data(), text.size(),
                    mac.data(), &length) != nullptr &&
           length == kMacBytes;
  }
};

Secret* secret = nullptr;  // set before the library starts any other thread

// Returns why the file is rejected; null if it is accepted.
const char* read_key(const char* path, std::vector<uint8_t>& key) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return strerror(errno);
  struct stat status {};
  const char* problem = nullptr;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
    problem = "the file is not a regular file";
  else if (status.st_uid != geteuid() && status.st_uid != 0)
    problem = "the file belongs to another user";
  else if ((status.st_mode & 077) != 0)
    problem = "users other than the owner may read or write the file; set the mode of the file to 0600";
  key.resize(kMaxBytes + 2);
  const ssize_t count = problem == nullptr ? read(fd, key.data(), key.size()) : 0;
  close(fd);
  if (problem != nullptr) return problem;
  key.resize(count > 0 ? static_cast<size_t>(count) : 0);
  if (!key.empty() && key.back() == '\n') key.pop_back();
  return key.size() < kMinBytes || key.size() > kMaxBytes ? "the file must hold 16 to 4096 bytes" : nullptr;
}

bool load() {
  const std::string& path = get_config().key_file;
  if (path.empty() && get_config().encryption)
    warn("VERBENA_ENCRYPTION=1 needs a job key. Set VERBENA_JOB_KEY_FILE to the path of the key file");
  if (path.empty()) return !get_config().encryption;
  auto loaded = std::make_unique<Secret>();
  const char* problem = read_key(path.c_str(), loaded->key);
  if (problem == nullptr && crypto::find_libcrypto() == nullptr)
    problem = "OpenSSL's libcrypto (3 or 1.1) was not found; install it";
  if (problem != nullptr) {
    warn("job key %s: %s (SOFTVERBS_KEY_FILE, VERBENA_JOB_KEY_FILE)", path.c_str(), problem);
    return false;
  }
  secret = loaded.release();
  return true;
}

template <typename T>
std::span<const uint8_t> whole(const T& value) {
  return {reinterpret_cast<const uint8_t*>(&value), sizeof(value)};
}
std::span<const uint8_t> label(const char* text) {
  return {reinterpret_cast<const uint8_t*>(text), strlen(text) + 1};
}

bool compute_welcome(const Hello& hello, const Hello& answer, Mac& mac) {
  return secret->compute(
      {label("softverbs welcome"), whole(hello), whole(answer).first(offsetof(Hello, mac))}, mac);
}
bool compute_ready(const Hello& hello, const Hello& answer, Mac& mac) {
  return secret->compute({label("softverbs ready"), whole(hello), whole(answer)}, mac);
}

// Compares in constant time.
bool is_same(const Mac& mac, const uint8_t* claimed) {
  uint8_t difference = 0;
  for (size_t i = 0; i < mac.size(); ++i)
    difference = static_cast<uint8_t>(difference | (mac[i] ^ claimed[i]));
  return difference == 0;
}

}  // namespace

bool load_key() {
  static const bool is_loaded = load();
  return is_loaded;
}

bool has_key() {
  return secret != nullptr;
}

Protection get_protection() {
  if (!has_key()) return kOpen;
  return get_config().encryption ? kEncrypted : kKeyed;
}

bool sign_welcome(const Hello& hello, Hello& answer) {
  Mac mac;
  if (!draw(answer.challenge) || !compute_welcome(hello, answer, mac)) return false;
  memcpy(answer.mac, mac.data(), mac.size());
  return true;
}

bool check_welcome(const Hello& hello, const Hello& answer) {
  Mac mac;
  return compute_welcome(hello, answer, mac) && is_same(mac, answer.mac);
}

bool sign_ready(const Hello& hello, const Hello& answer, Ready& ready) {
  Mac mac;
  if (!compute_ready(hello, answer, mac)) return false;
  memcpy(ready.mac, mac.data(), mac.size());
  return true;
}

bool check_ready(const Hello& hello, const Hello& answer, const Ready& ready) {
  Mac mac;
  return compute_ready(hello, answer, mac) && is_same(mac, ready.mac);
}

// Like HKDF (RFC 5869): derives a key from all data that both ends have sent, and from it a key for each
// direction.
std::shared_ptr<crypto::EncryptedStream> make_encryption(const Hello& hello, const Hello& answer,
                                                         bool is_requester) {
  Secret session;
  session.key.resize(kMacBytes);
  Mac of_stream, to_listener, to_caller;
  static_assert(sizeof(Mac) == sizeof(crypto::StreamKey));
  if (!secret->compute({label("softverbs encryption"), whole(hello), whole(answer)}, of_stream))
    return nullptr;
  memcpy(session.key.data(), of_stream.data(), of_stream.size());
  constexpr uint8_t kFirstBlock = 1;
  if (!session.compute({label("to the listener"), whole(kFirstBlock)}, to_listener) ||
      !session.compute({label("to the caller"), whole(kFirstBlock)}, to_caller))
    return nullptr;
  return is_requester
             ? crypto::EncryptedStream::create(to_listener, to_caller, crypto::EncryptedStream::kForBulk)
             : crypto::EncryptedStream::create(to_caller, to_listener, crypto::EncryptedStream::kForBulk);
}

}  // namespace verbena::softverbs::wire
