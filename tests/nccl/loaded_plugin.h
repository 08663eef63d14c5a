// The built libnccl-net.so, opened as NCCL opens it, in an environment of the test's own.
#pragma once

#include <string>

#include "tests/base/scoped_environment.h"

namespace verbena::nccl::testing {

using base::ScopedEnvironment;

class LoadedPlugin {
 public:
  // Null pointers from table() if the library could not be opened; problem() says why.
  LoadedPlugin();
  LoadedPlugin(const LoadedPlugin&) = delete;
  LoadedPlugin& operator=(const LoadedPlugin&) = delete;
  ~LoadedPlugin();

  template <typename V>
  const typename V::Table* table() const {
    return static_cast<const typename V::Table*>(find_symbol(V::symbol()));
  }
  const std::string& problem() const { return problem_; }

  static const char* path();
  static bool is_in_memory();  // mapped by anybody in this process

 private:
  const void* find_symbol(const std::string& name) const;
  void* library_ = nullptr;
  std::string problem_;
};

// What this process holds; to compare before and after.
size_t count_open_files();
size_t count_threads();
size_t count_own_threads();  // the plugin's, without those of softverbs

}  // namespace verbena::nccl::testing
