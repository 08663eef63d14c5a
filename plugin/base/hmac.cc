#include "base/hmac.h"

#include <string.h>

#include "base/log.h"
#include "crypto/libcrypto.h"

namespace verbena::base {

using crypto::find_libcrypto, crypto::Libcrypto;

bool has_crypto() {
  return find_libcrypto() != nullptr;
}

bool is_same_mac(Bytes a, Bytes b) {
  const Libcrypto* api = find_libcrypto();
  return api != nullptr && a.size() == b.size() && api->compare(a.data(), b.data(), a.size()) == 0;
}

void wipe(std::span<uint8_t> bytes) {
  const Libcrypto* api = find_libcrypto();
  if (api != nullptr) {
    api->cleanse(bytes.data(), bytes.size());
  } else {
    explicit_bzero(bytes.data(), bytes.size());
  }
}

Result<HmacKey> HmacKey::create(Bytes secret) {
  if (find_libcrypto() == nullptr) {
    return fail(Status::kSystem,
                "job key: VERBENA_JOB_KEY_FILE needs the HMAC-SHA-256 of OpenSSL, but neither %s nor %s "
                "provides HMAC-SHA-256. Install libcrypto",
                crypto::kLibcryptoNames[0], crypto::kLibcryptoNames[1]);
  }
  HmacKey key;
  key.secret_.get().assign(secret.begin(), secret.end());
  return key;
}

HmacKey::~HmacKey() {
  if (!secret_->empty()) wipe(secret_.get());
}

Result<Mac> HmacKey::compute(std::initializer_list<Bytes> parts) const {
  std::vector<uint8_t> text;
  for (const Bytes part : parts) text.insert(text.end(), part.begin(), part.end());
  const Libcrypto& api = *find_libcrypto();
  Mac mac{};
  unsigned length_bytes = 0;
  const unsigned char* done = api.hmac(api.sha256(), secret_->data(), static_cast<int>(secret_->size()),
                                       text.data(), text.size(), mac.data(), &length_bytes);
  if (done != nullptr && length_bytes == kMacBytes) return mac;
  return fail(Status::kSystem,
              "job key: OpenSSL cannot compute the HMAC-SHA-256 that VERBENA_JOB_KEY_FILE needs");
}

Result<HmacKey> HmacKey::derive(std::initializer_list<Bytes> parts) const {
  auto mac = compute(parts);
  if (!mac) return mac.error();
  auto key = create(*mac);
  wipe(*mac);
  return key;
}

}  // namespace verbena::base
