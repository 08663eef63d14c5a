#include "base/hmac.h"

#include <dlfcn.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>
#include <optional>

#include "base/log.h"

namespace verbena::base {
namespace {

// These functions are the same in both.
constexpr const char* kLibraries[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

struct CryptoApi {
  decltype(&::HMAC) hmac;
  decltype(&::EVP_sha256) sha256;
  decltype(&::CRYPTO_memcmp) compare;
  decltype(&::OPENSSL_cleanse) cleanse;
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// libcrypto sets itself up at its first use and takes locks for it. That use is made here, where a key is
// loaded, rather than in a thread of ours beside which the process may fork: the child would wait for the
// lock for ever.
bool computes_macs(const CryptoApi& api) {
  Mac mac{};
  const uint8_t nothing = 0;
  return api.hmac(api.sha256(), &nothing, 0, &nothing, 0, mac.data(), nullptr) != nullptr;
}

// Never closed: it may be the process's own too.
std::optional<CryptoApi> load_crypto() {
  for (const char* name : kLibraries) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    CryptoApi api{};
    if (library != nullptr && find(library, "HMAC", api.hmac) && find(library, "EVP_sha256", api.sha256) &&
        find(library, "CRYPTO_memcmp", api.compare) && find(library, "OPENSSL_cleanse", api.cleanse) &&
        computes_macs(api))
      return api;
  }
  return std::nullopt;
}

const CryptoApi* find_crypto() {
  static const std::optional<CryptoApi> api = load_crypto();
  return api ? &*api : nullptr;
}

}  // namespace

bool is_same_mac(Bytes a, Bytes b) {
  const CryptoApi* api = find_crypto();
  return api != nullptr && a.size() == b.size() && api->compare(a.data(), b.data(), a.size()) == 0;
}

void wipe(std::span<uint8_t> bytes) {
  const CryptoApi* api = find_crypto();
  if (api != nullptr) {
    api->cleanse(bytes.data(), bytes.size());
  } else {
    explicit_bzero(bytes.data(), bytes.size());
  }
}

Result<HmacKey> HmacKey::create(Bytes secret) {
  if (find_crypto() == nullptr) {
    return fail(
        Status::kSystem,
        "job key: VERBENA_JOB_KEY_FILE needs OpenSSL: neither %s nor %s is there and computes HMAC-SHA-256",
        kLibraries[0], kLibraries[1]);
  }
  HmacKey key;
  key.secret_.assign(secret.begin(), secret.end());
  return key;
}

HmacKey& HmacKey::operator=(HmacKey&& other) noexcept {
  secret_.swap(other.secret_);
  return *this;
}

HmacKey::~HmacKey() {
  if (!secret_.empty()) wipe(secret_);
}

Result<Mac> HmacKey::compute(std::initializer_list<Bytes> parts) const {
  std::vector<uint8_t> text;
  for (const Bytes part : parts) text.insert(text.end(), part.begin(), part.end());
  const CryptoApi& api = *find_crypto();
  Mac mac{};
  unsigned length_bytes = 0;
  const unsigned char* done = api.hmac(api.sha256(), secret_.data(), static_cast<int>(secret_.size()),
                                       text.data(), text.size(), mac.data(), &length_bytes);
  if (done != nullptr && length_bytes == kMacBytes) return mac;
  return fail(Status::kSystem, "job key: OpenSSL computes no HMAC-SHA-256 (VERBENA_JOB_KEY_FILE)");
}

Result<HmacKey> HmacKey::derive(std::initializer_list<Bytes> parts) const {
  auto mac = compute(parts);
  if (!mac) return mac.error();
  auto key = create(*mac);
  wipe(*mac);
  return key;
}

}  // namespace verbena::base
