// The arguments of the kernel that executes a call on a stream.
#pragma once

#include "verbena/symm_abi.h"

namespace verbena::symm {

inline constexpr uint32_t kStreamPieces = 16;  // per call

struct StreamCall {
  enum class Kind : uint32_t { kBarrier, kSignal, kWait, kPut, kGet, kQuiet, kPutPieces };

  Kind kind;
  uint32_t number = 0;     // index of the barrier or signal
  int32_t peer = 0;        // rank in the team
  uint32_t operation = 0;  // a SymmSignalOperation, or the SymmCompare of a wait
  uint64_t value = 0;      // kPutPieces: number of pieces
  // For a copy: addresses and length.
  uint64_t destination = 0, source = 0, length_bytes = 0;
  SymmPiece pieces[kStreamPieces] = {};
};

inline constexpr uint32_t kStreamThreads = 256;
inline constexpr uint32_t kStreamBlocks = 32;                      // maximum, for a copy
inline constexpr uint64_t kStreamBlockBytes = uint64_t{64} << 10;  // bytes of a copy per block

}  // namespace verbena::symm
