// The table in GPU memory (struct SymmAliases) in which kernels look up the symmetric addresses of memory
// that the application has registered. Any thread may change the table, and kernels may read the table at the
// same time.
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
  // Creates an empty table in memory of the calling thread's current GPU.
  static base::Result<AliasTable> create();

  // The table's address for kernels (SymmContext::aliases).
  const SymmAliases* device() const { return static_cast<const SymmAliases*>(memory_.device()); }

  // Adds an entry: `length_bytes` bytes of memory at `begin` have the symmetric address `symmetric`. The
  // table has as many entries as a context can have windows.
  base::Result<uint32_t> add(const void* begin, uint64_t length_bytes, const void* symmetric);
  void remove(uint32_t entry);
  // Returns the symmetric address of `address`, or `address` itself if it is in no entry.
  uint64_t find(uint64_t address) const;

 private:
  base::Buffer memory_;
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();  // guards the entries
  std::vector<SymmAlias> entries_;                                      // an entry whose end is 0 is free
};

}  // namespace verbena::symm
