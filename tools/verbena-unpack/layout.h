#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "verbena-unpack/test_case.h"
#include "verbena-unpack/unpack_run.h"
#include "verbena/unpack_abi.h"

namespace verbena::tools::unpack {

// Where a case's messages lie, as the plugin would leave them: each page at the beginning of a bounce page of
// its own, bounce pages in no order. Addresses are not set. Throws ToolError for what the unpack queue cannot
// hold.
UnpackRun plan_run(const TestCase& test_case, uint64_t footprint_bytes);

// Writes the descriptors and counts of one connection's slots; the other slots are left empty.
void fill_queue(const TestCase& test_case, const UnpackRun& run, uint32_t connection, NetUnpackMeta& meta);

// What the GPU does for a run where there is none: the payload into the bounce regions, and the number of
// wrong bytes in the buffers.
void fill_bounce(const UnpackRun& run, std::span<std::byte> bounce, std::span<const NetUnpackMeta> queues);
void fill_buffers(std::span<std::byte> buffers);
uint64_t count_wrong_bytes(const UnpackRun& run, std::span<const std::byte> buffers);

}  // namespace verbena::tools::unpack
