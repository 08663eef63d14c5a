// The frames on a control socket after its handshake. All connections between two processes share one socket,
// and a frame names the connection to which its bytes belong. Little endian; every field from outside is
// checked.
#pragma once

#include <cstdint>
#include <type_traits>

namespace verbena::protocol {

enum class FrameKind : uint32_t {
  kBytes = 1,   // `length_bytes` of recovery records follow
  kClosed = 2,  // the sender of the frame has closed its end of the connection; last frame
};

struct FrameHeader {
  uint64_t connection;  // Welcome::id of the connection's handshake
  uint32_t length_bytes;
  FrameKind kind;
};
static_assert(sizeof(FrameHeader) == 16 && std::has_unique_object_representations_v<FrameHeader>);

inline constexpr uint32_t kMaxFrameBytes = 8192;

inline bool is_sane(const FrameHeader& header) {
  if (header.kind == FrameKind::kClosed) return header.length_bytes == 0;
  return header.kind == FrameKind::kBytes && header.length_bytes >= 1 &&
         header.length_bytes <= kMaxFrameBytes;
}

}  // namespace verbena::protocol
