// OpenSSL's libcrypto (3 or 1.1), loaded with the first key. Hosts whose jobs have no key need no OpenSSL,
// and updates of the system's library take effect.
#pragma once

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace verbena::crypto {

// The functions that this library uses; they are the same in both versions.
struct Libcrypto {
  decltype(&::HMAC) hmac;
  decltype(&::EVP_sha256) sha256;
  decltype(&::CRYPTO_memcmp) compare;
  decltype(&::OPENSSL_cleanse) cleanse;
  decltype(&::EVP_aes_256_gcm) aes_256_gcm;
  decltype(&::EVP_CIPHER_CTX_new) new_context;
  decltype(&::EVP_CIPHER_CTX_free) free_context;
  decltype(&::EVP_CipherInit_ex) init;
  decltype(&::EVP_CipherUpdate) update;
  decltype(&::EVP_CipherFinal_ex) finish;
  decltype(&::EVP_CIPHER_CTX_ctrl) control;
};

inline constexpr const char* kLibcryptoNames[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

// Returns null if neither version was found, or if it cannot compute the needed functions. Any thread may
// call it. Loaded once and never unloaded, because the application may use it too.
const Libcrypto* find_libcrypto();

}  // namespace verbena::crypto
