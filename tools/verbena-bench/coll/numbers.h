// The data of checked tensors: each rank's input, and the bits of the expected result.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "verbena/ops.h"

namespace verbena::tools::coll {

// bf16, f16, f32, i32, e4m3. Throws UsageError.
verbena_ops_type find_type(const std::string& name);
uint64_t get_element_bytes(verbena_ops_type type);
// ncclDataType_t; -1: NCCL has none.
int find_nccl_type(verbena_ops_type type);

using Bytes = std::vector<unsigned char>;

// Returns the input of call `round`: elements of many magnitudes and both signs, whose sums round.
Bytes make_input(verbena_ops_type type, uint64_t count, uint32_t rank, uint32_t round);
// Returns the reduction of all ranks' inputs in the order that the library promises: first over the `of_host`
// ranks of each host, then over the hosts.
Bytes make_reduced(verbena_ops_type type, verbena_ops_reduction reduction, uint64_t count, uint32_t ranks,
                   uint32_t round, uint32_t of_host);

// The elements as floats, and a float as an element rounds it.
std::vector<float> widen_all(verbena_ops_type type, const Bytes& elements);
float round_number(verbena_ops_type type, float number);

uint64_t hash_bytes(const Bytes& bytes);

// Returns the relative root-mean-square error of sums. It is relative to the exact sums or to the addends,
// whichever are larger, because addends that cancel each other leave an error of the addends' magnitude.
double measure_error(verbena_ops_type type, const Bytes& numbers, const Bytes& exact,
                     const std::vector<Bytes>& terms);

}  // namespace verbena::tools::coll
