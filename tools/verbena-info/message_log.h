// What the plugin's code says while it looks around in this process.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace verbena::tools::info {

struct Message {
  bool is_warning = false;
  std::string text;  // without the prefix
};

// Of a line of the plugin's.
std::string strip_prefix(std::string_view line);
// From now on lines are kept instead of printed; any thread.
void keep_messages();
// So far, each once.
std::vector<Message> list_messages();

}  // namespace verbena::tools::info
