// Where kernels find the symmetric address of memory that the application has registered: a table in the
// GPU's memory (struct SymmAliases). Not thread safe; kernels may read it meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/cuda_driver.h"
#include "base/status.h"
#include "verbena/symm_abi.h"

namespace verbena::symm {

class AliasTable {
 public:
  // In memory of the calling thread's current GPU.
  static base::Result<AliasTable> create();

  // For SymmContext::aliases.
  const SymmAliases* device() const { return static_cast<const SymmAliases*>(memory_.device()); }

  // `length_bytes` at `begin` are the window's from `symmetric` on. There is room for as many as there are
  // windows.
  base::Result<uint32_t> add(const void* begin, uint64_t length_bytes, const void* symmetric);
  void remove(uint32_t entry);
  // What kernels take an address for; itself where it is in no entry.
  uint64_t find(uint64_t address) const;

 private:
  base::Buffer memory_;
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();  // guards the entries
  std::vector<SymmAlias> entries_;                                      // with an end of 0: free
};

}  // namespace verbena::symm
