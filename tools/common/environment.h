#pragma once
#include <map>
#include <string>
#include <vector>

namespace verbena::tools {

// The environment of child processes: that of this process, plus the tool's defaults, which never override
// the user's values, plus settings from explicit options of the tool, which do.
class Environment {
 public:
  static Environment copy_own();

  void set_default(const std::string& name, const std::string& value);
  void set(const std::string& name, const std::string& value);
  void unset(const std::string& name);

  const std::string* find(const std::string& name) const;

  // "NAME=value" of all variables, or only of those that this tool has set.
  std::vector<std::string> list_all() const;
  std::vector<std::string> list_applied() const;

 private:
  std::map<std::string, std::string> variables_;
  std::map<std::string, std::string> applied_;
};

}  // namespace verbena::tools
