// The secret that the processes of a job share, from the file that VERBENA_JOB_KEY_FILE names.
#pragma once

#include <memory>

#include "base/hmac.h"

namespace verbena::base {

// Reads the file anew, or forgets the key if none is named. Refused: what group or others may read or write,
// what is no plain file, fewer than 16 or more than 4096 bytes; a newline at the end does not count. Not
// thread safe, like load_parameters(), after which it is called.
Outcome load_job_key();

// Null: the job has none. An error if one is named and was not loaded: nobody goes on without it by mistake.
Result<std::shared_ptr<const HmacKey>> job_key();

}  // namespace verbena::base
