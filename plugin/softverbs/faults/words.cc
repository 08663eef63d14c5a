#include "softverbs/faults/words.h"

#include <charconv>
#include <cmath>

#include "softverbs/shared/config.h"

namespace verbena::softverbs::faults {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};
constexpr Unit kTimes[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
constexpr Unit kRates[] = {{"B/s", 1}, {"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}};

template <typename T>
struct Named {
  std::string_view name;
  T value;
};

constexpr Named<ibv_wc_status> kStatuses[] = {
    {"LOC_LEN", IBV_WC_LOC_LEN_ERR},
    {"LOC_QP_OP", IBV_WC_LOC_QP_OP_ERR},
    {"LOC_EEC_OP", IBV_WC_LOC_EEC_OP_ERR},
    {"LOC_PROT", IBV_WC_LOC_PROT_ERR},
    {"WR_FLUSH", IBV_WC_WR_FLUSH_ERR},
    {"MW_BIND", IBV_WC_MW_BIND_ERR},
    {"BAD_RESP", IBV_WC_BAD_RESP_ERR},
    {"LOC_ACCESS", IBV_WC_LOC_ACCESS_ERR},
    {"REM_INV_REQ", IBV_WC_REM_INV_REQ_ERR},
    {"REM_ACCESS", IBV_WC_REM_ACCESS_ERR},
    {"REM_OP", IBV_WC_REM_OP_ERR},
    {"RETRY_EXC", IBV_WC_RETRY_EXC_ERR},
    {"RNR_RETRY_EXC", IBV_WC_RNR_RETRY_EXC_ERR},
    {"LOC_RDD_VIOL", IBV_WC_LOC_RDD_VIOL_ERR},
    {"REM_INV_RD_REQ", IBV_WC_REM_INV_RD_REQ_ERR},
    {"REM_ABORT", IBV_WC_REM_ABORT_ERR},
    {"INV_EECN", IBV_WC_INV_EECN_ERR},
    {"INV_EEC_STATE", IBV_WC_INV_EEC_STATE_ERR},
    {"FATAL", IBV_WC_FATAL_ERR},
    {"RESP_TIMEOUT", IBV_WC_RESP_TIMEOUT_ERR},
    {"GENERAL", IBV_WC_GENERAL_ERR},
};

constexpr Named<ibv_wr_opcode> kOpcodes[] = {
    {"SEND", IBV_WR_SEND},
    {"SEND_WITH_IMM", IBV_WR_SEND_WITH_IMM},
    {"SEND_WITH_INV", IBV_WR_SEND_WITH_INV},
    {"RDMA_WRITE", IBV_WR_RDMA_WRITE},
    {"RDMA_WRITE_WITH_IMM", IBV_WR_RDMA_WRITE_WITH_IMM},
    {"RDMA_READ", IBV_WR_RDMA_READ},
    {"ATOMIC_WRITE", IBV_WR_ATOMIC_WRITE},
    {"ATOMIC_CMP_AND_SWP", IBV_WR_ATOMIC_CMP_AND_SWP},
    {"ATOMIC_FETCH_AND_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD},
};

constexpr Named<ibv_event_type> kEvents[] = {
    {"QP_FATAL", IBV_EVENT_QP_FATAL},
    {"DEVICE_FATAL", IBV_EVENT_DEVICE_FATAL},
    {"PORT_ERR", IBV_EVENT_PORT_ERR},
    {"PORT_ACTIVE", IBV_EVENT_PORT_ACTIVE},
};

template <typename T, size_t kCount>
bool find(const Named<T> (&known)[kCount], std::string_view name, T& value) {
  for (const Named<T>& candidate : known) {
    if (candidate.name != name) continue;
    value = candidate.value;
    return true;
  }
  return false;
}

std::string_view strip(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

template <typename T>
bool read_all(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stop == end;
}

template <size_t kCount>
bool read_scaled(std::string_view text, const Unit (&units)[kCount], uint64_t& value) {
  constexpr double kMax = 1e18;
  const size_t digits = text.find_first_not_of("0123456789.");
  double number = 0;
  if (digits == std::string_view::npos || !read_all(text.substr(0, digits), number)) return false;
  for (const Unit& unit : units) {
    if (text.substr(digits) != unit.name) continue;
    const double scaled = std::round(number * unit.factor);
    if (!(scaled >= 0 && scaled <= kMax)) return false;
    value = static_cast<uint64_t>(scaled);
    return true;
  }
  return false;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::string_view> split_words(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  std::vector<std::string_view> words;
  for (;;) {
    const size_t begin = text.find_first_not_of(kSpaces);
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const size_t end = text.find_first_of(kSpaces);
    words.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return words;
    text.remove_prefix(end);
  }
}

bool read_number(std::string_view text, uint64_t& number) {
  return read_all(text, number);
}

bool read_chance(std::string_view text, double& chance) {
  return read_all(text, chance) && chance > 0 && chance <= 1;
}

bool read_time(std::string_view text, uint64_t& time_ns) {
  return read_scaled(text, kTimes, time_ns);
}

bool read_rate(std::string_view text, uint64_t& bytes_per_second) {
  return read_scaled(text, kRates, bytes_per_second) && bytes_per_second > 0;
}

bool read_rail(std::string_view text, uint32_t& rail, uint32_t any) {
  if (text == "*") {
    rail = any;
    return true;
  }
  return read_all(text, rail) && rail < kMaxDevices;
}

bool read_status(std::string_view text, ibv_wc_status& status) {
  text = strip(text, "IBV_WC_");
  if (text.ends_with("_ERR")) text.remove_suffix(4);
  return find(kStatuses, text, status);
}

bool read_opcodes(std::string_view text, uint32_t& opcodes) {
  opcodes = 0;
  for (const std::string_view name : split(text, ',')) {
    ibv_wr_opcode opcode{};
    if (!find(kOpcodes, strip(name, "IBV_WR_"), opcode)) return false;
    opcodes |= 1u << opcode;
  }
  return true;
}

bool read_event(std::string_view text, ibv_event_type& event) {
  return find(kEvents, strip(text, "IBV_EVENT_"), event);
}

}  // namespace verbena::softverbs::faults
