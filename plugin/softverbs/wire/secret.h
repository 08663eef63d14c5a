#pragma once

#include <memory>

#include "crypto/encrypted_stream.h"
#include "softverbs/wire/frame.h"

// The job's key, and what proves on a connection that its other end has it too: HMAC-SHA-256 by OpenSSL's
// libcrypto, which is loaded only where there is a key.
namespace verbena::softverbs::wire {

// Reads the file that SOFTVERBS_KEY_FILE or VERBENA_JOB_KEY_FILE names, once. False, said on stderr: one is
// named and cannot be used.
bool load_key();
bool has_key();
Protection get_protection();

// Each proof covers all that was said before, both challenges among it. False: it cannot be computed, or is
// not the right one.
bool sign_welcome(const Hello& hello, Hello& answer);
bool check_welcome(const Hello& hello, const Hello& answer);
bool sign_ready(const Hello& hello, const Hello& answer, Ready& ready);
bool check_ready(const Hello& hello, const Hello& answer, const Ready& ready);

// What follows a stream's Ready, both ways, by keys of this stream alone. Null: it cannot be set up.
std::shared_ptr<crypto::EncryptedStream> make_encryption(const Hello& hello, const Hello& answer,
                                                         bool is_requester);

}  // namespace verbena::softverbs::wire
