// Parses the words of plans: numbers, times, rates, names of verbs. Each function returns false unless the
// whole text is valid.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace verbena::softverbs::faults {

std::vector<std::string_view> split(std::string_view text, char separator);
std::vector<std::string_view> split_words(std::string_view text);  // by spaces and tabs

bool read_number(std::string_view text, uint64_t& number);
bool read_chance(std::string_view text, double& chance);              // in (0, 1]
bool read_time(std::string_view text, uint64_t& time_ns);             // 10us, 1.5s
bool read_rate(std::string_view text, uint64_t& bytes_per_second);    // 100MB/s
bool read_rail(std::string_view text, uint32_t& rail, uint32_t any);  // a number, or * for `any`
bool read_status(std::string_view text, ibv_wc_status& status);       // RETRY_EXC, IBV_WC_RETRY_EXC_ERR
bool read_opcodes(std::string_view text, uint32_t& opcodes);          // RDMA_WRITE,SEND
bool read_event(std::string_view text, ibv_event_type& event);        // DEVICE_FATAL

}  // namespace verbena::softverbs::faults
