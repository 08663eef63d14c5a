#pragma once

namespace verbena::tools::info {

// --self-test: tries on each device what messages need, in host memory and in memory of each GPU, and writes
// one line of JSON, for reports about a NIC. Returns the exit status: kExitOk if each device can be
// used, kExitNoDevice if there is none.
int run_self_tests();

}  // namespace verbena::tools::info
