#include "bootstrap/messages.h"

#include <algorithm>
#include <cstring>

namespace verbena::bootstrap {
namespace {

constexpr size_t kMaxTextBytes = 600;  // a log line has room for it

struct Head {
  uint32_t status = 0;
  int32_t errno_value = 0;
};

bool is_printable(uint8_t letter) {
  return letter >= 0x20 && letter != 0x7F;
}

}  // namespace

Record make_failure(const FailureNote& note) {
  const Head head{static_cast<uint32_t>(note.error.status), note.error.errno_value};
  const size_t text_bytes = std::min(note.text.size(), kMaxTextBytes);
  return make_record({.kind = FrameKind::kFailure},
                     {as_bytes(&head, sizeof(head)), as_bytes(note.text.data(), text_bytes)});
}

FailureNote read_failure(const Record& record) {
  const base::Bytes payload = payload_of(record);
  FailureNote note{{base::Status::kRemote, 0}, "no reason given"};
  Head head;
  if (payload.size() < sizeof(head)) return note;
  std::memcpy(&head, payload.data(), sizeof(head));
  if (head.status > 0 && head.status <= static_cast<uint32_t>(base::Status::kTimeout)) {
    note.error.status = static_cast<base::Status>(head.status);
  }
  note.error.errno_value = head.errno_value;
  const base::Bytes text =
      payload.subspan(sizeof(head)).first(std::min(payload.size() - sizeof(head), kMaxTextBytes));
  note.text.assign(text.begin(), text.end());
  std::replace_if(
      note.text.begin(), note.text.end(),
      [](char letter) { return !is_printable(static_cast<uint8_t>(letter)); }, '?');
  return note;
}

namespace {

constexpr size_t kMaxRuns = 12;

}  // namespace

std::string show_ranks(std::span<const uint32_t> ranks) {
  std::vector<std::string> runs;
  size_t next = 0;
  while (next < ranks.size() && runs.size() < kMaxRuns) {
    const size_t first = next++;
    while (next < ranks.size() && ranks[next] == ranks[next - 1] + 1) ++next;
    std::string run = std::to_string(ranks[first]);
    if (next - first == 2) {
      next = first + 1;  // two ranks in a row are shown one by one
    } else if (next - first > 2) {
      run += " to " + std::to_string(ranks[next - 1]);
    }
    runs.push_back(std::move(run));
  }
  if (next < ranks.size()) runs.push_back(std::to_string(ranks.size() - next) + " others");
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i > 0) text += i + 1 == runs.size() ? " and " : ", ";
    text += runs[i];
  }
  return text;
}

}  // namespace verbena::bootstrap
