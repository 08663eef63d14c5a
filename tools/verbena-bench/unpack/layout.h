#pragma once
#include <cstdint>
#include <span>

#include "verbena-bench/unpack/test_case.h"
#include "verbena-bench/unpack/unpack_run.h"
#include "verbena/unpack_abi.h"

namespace verbena::tools::unpack {

// Plans where the messages of a case lie, as the plugin would place them: each page at the start of a
// separate bounce page, bounce pages in no order. Does not set addresses. Throws ToolError if the unpack
// queue cannot hold a message.
UnpackRun plan_run(const TestCase& test_case, uint64_t footprint_bytes);

// Writes the descriptors and counts of one connection's slots; the other slots stay empty.
void fill_queue(const TestCase& test_case, const UnpackRun& run, uint32_t connection, NetUnpackMeta& meta);

// The CPU versions of the kernels: fill the bounce regions and the buffers, and count the wrong bytes in the
// buffers.
void fill_bounce(const UnpackRun& run, std::span<std::byte> bounce, std::span<const NetUnpackMeta> queues);
void fill_buffers(std::span<std::byte> buffers);
uint64_t count_wrong_bytes(const UnpackRun& run, std::span<const std::byte> buffers);

}  // namespace verbena::tools::unpack
