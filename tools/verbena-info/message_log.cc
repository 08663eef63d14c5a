#include "verbena-info/message_log.h"

#include <algorithm>
#include <mutex>

#include "base/log.h"

namespace verbena::tools::info {
namespace {

struct Kept {
  std::mutex mutex;  // guards what follows
  std::vector<Message> messages;
};

Kept& kept() {
  static auto* const messages = new Kept;  // threads of the plugin's code may outlive main
  return *messages;
}

void keep(base::LogLevel level, const char*, int, const char* text) {
  if (level == base::LogLevel::kTrace) return;
  const std::string words = strip_prefix(text);
  const std::lock_guard lock(kept().mutex);
  auto& messages = kept().messages;
  const bool is_known =
      std::any_of(messages.begin(), messages.end(), [&](const Message& m) { return m.text == words; });
  if (!is_known) messages.push_back({level == base::LogLevel::kWarn, words});
}

}  // namespace

std::string strip_prefix(std::string_view line) {
  constexpr std::string_view kPrefix = "verbena: ";
  if (line.starts_with(kPrefix)) line.remove_prefix(kPrefix.size());
  return std::string(line);
}

void keep_messages() {
  base::set_log_sink(keep);
}

std::vector<Message> list_messages() {
  const std::lock_guard lock(kept().mutex);
  return kept().messages;
}

}  // namespace verbena::tools::info
