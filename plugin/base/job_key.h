// The secret that the processes of a job share, from the file that VERBENA_JOB_KEY_FILE names.
#pragma once

#include <memory>

#include "base/hmac.h"
#include "base/socket.h"

namespace verbena::base {

// Reads the file again, or forgets the key if no file is named. Refuses a file that belongs to neither this
// user nor root, that group or others may read or write, that is not a regular file, or that has fewer than
// 16 or more than 4096 bytes; a newline at the end does not count. Call it after load_parameters(). Not
// thread safe, like load_parameters().
Outcome load_job_key();

// Returns the job key, or null if the job has none. Fails if a file is named but was not loaded, so that no
// connection is accidentally made without the key.
Result<std::shared_ptr<const HmacKey>> job_key();

// Encrypts the connection if VERBENA_ENCRYPTION is set. Call it before the first byte.
Outcome encrypt_if_asked(Socket& socket, ConnectionEnd end);

}  // namespace verbena::base
