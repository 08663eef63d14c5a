#include "crypto/libcrypto.h"

#include <dlfcn.h>

#include <cstdint>
#include <optional>

namespace verbena::crypto {
namespace {

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Libcrypto& into) {
  return find(library, "HMAC", into.hmac) && find(library, "EVP_sha256", into.sha256) &&
         find(library, "CRYPTO_memcmp", into.compare) && find(library, "OPENSSL_cleanse", into.cleanse) &&
         find(library, "EVP_aes_256_gcm", into.aes_256_gcm) &&
         find(library, "EVP_CIPHER_CTX_new", into.new_context) &&
         find(library, "EVP_CIPHER_CTX_free", into.free_context) &&
         find(library, "EVP_CipherInit_ex", into.init) && find(library, "EVP_CipherUpdate", into.update) &&
         find(library, "EVP_CipherFinal_ex", into.finish) &&
         find(library, "EVP_CIPHER_CTX_ctrl", into.control);
}

// Uses libcrypto once. libcrypto initialises itself at its first use, and takes locks for this. This must
// happen while a key is loaded: if a thread of this library did it later and the process forked meanwhile,
// the child would wait for the lock forever.
bool computes(const Libcrypto& api) {
  uint8_t mac[EVP_MAX_MD_SIZE];
  const uint8_t zeros[32] = {};
  if (api.hmac(api.sha256(), zeros, 0, zeros, 0, mac, nullptr) == nullptr) return false;
  EVP_CIPHER_CTX* context = api.new_context();
  const bool encrypts =
      context != nullptr && api.init(context, api.aes_256_gcm(), nullptr, zeros, zeros, 1) == 1;
  api.free_context(context);
  return encrypts;
}

std::optional<Libcrypto> load() {
  for (const char* name : kLibcryptoNames) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    Libcrypto api{};
    if (library != nullptr && find_all(library, api) && computes(api)) return api;
  }
  return std::nullopt;
}

}  // namespace

const Libcrypto* find_libcrypto() {
  static const std::optional<Libcrypto> api = load();
  return api ? &*api : nullptr;
}

}  // namespace verbena::crypto
