// The job key, and the proof that the other end of a connection has the same key. The proof uses HMAC-SHA-256
// from OpenSSL's libcrypto, which is loaded only if there is a key.
#pragma once

#include <memory>

#include "crypto/encrypted_stream.h"
#include "softverbs/wire/frame.h"

namespace verbena::softverbs::wire {

// Reads the file that SOFTVERBS_KEY_FILE or VERBENA_JOB_KEY_FILE names, once. Returns false, with a line on
// stderr, if the file cannot be used.
bool load_key();
bool has_key();
Protection get_protection();

// Each proof covers all data that was sent before, with both challenges. The functions return false if the
// proof cannot be computed, or is wrong.
bool sign_welcome(const Hello& hello, Hello& answer);
bool check_welcome(const Hello& hello, const Hello& answer);
bool sign_ready(const Hello& hello, const Hello& answer, Ready& ready);
bool check_ready(const Hello& hello, const Hello& answer, const Ready& ready);

// Returns the encryption of all data after a stream's Ready, in both directions, with keys for this stream
// alone. Returns null if it cannot be set up.
std::shared_ptr<crypto::EncryptedStream> make_encryption(const Hello& hello, const Hello& answer,
                                                         bool is_requester);

}  // namespace verbena::softverbs::wire
