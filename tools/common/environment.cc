#include "common/environment.h"

#include <unistd.h>

#include <cstring>

namespace verbena::tools {
namespace {

std::vector<std::string> join_pairs(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> pairs;
  pairs.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    std::string& pair = pairs.emplace_back(name);
    pair += '=';
    pair += value;
  }
  return pairs;
}

}  // namespace

Environment Environment::copy_own() {
  Environment own;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr)
      own.variables_[std::string(*entry, static_cast<size_t>(equals - *entry))] = equals + 1;
  }
  return own;
}

void Environment::set_default(const std::string& name, const std::string& value) {
  if (variables_.emplace(name, value).second) applied_[name] = value;
}

void Environment::set(const std::string& name, const std::string& value) {
  variables_[name] = value;
  applied_[name] = value;
}

void Environment::unset(const std::string& name) {
  variables_.erase(name);
  applied_.erase(name);
}

const std::string* Environment::find(const std::string& name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : &found->second;
}

std::vector<std::string> Environment::list_all() const {
  return join_pairs(variables_);
}
std::vector<std::string> Environment::list_applied() const {
  return join_pairs(applied_);
}

}  // namespace verbena::tools
