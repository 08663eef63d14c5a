#include "softverbs/shared/copy.h"

#include <algorithm>
#include <cerrno>

#include "softverbs/shared/config.h"

namespace verbena::softverbs {
namespace {

#if defined(__SANITIZE_THREAD__)
// The thread sanitizer does not check these copies. The application synchronises with them through
// completions, or polls memory intentionally.
#define SOFTVERBS_UNCHECKED __attribute__((no_sanitize("thread")))
#else
#define SOFTVERBS_UNCHECKED
#endif

using Line __attribute__((vector_size(32))) = uint64_t;

// Stores that the compiler may neither merge nor reorder. A word of up to 16 bytes is one store.
template <typename T>
SOFTVERBS_UNCHECKED inline void copy_word(uint8_t* destination, const uint8_t* source) {
  T value;
  __builtin_memcpy(&value, source, sizeof(T));
  __builtin_memcpy(destination, &value, sizeof(T));
  asm volatile("" ::: "memory");
#if defined(__aarch64__)
  asm volatile("dmb ishst" ::: "memory");  // x86 orders stores without a fence
#endif
}

template <typename T>
SOFTVERBS_UNCHECKED inline void copy_if(uint8_t*& destination, const uint8_t*& source, size_t& bytes,
                                        bool wanted) {
  if (!wanted || bytes < sizeof(T)) return;
  copy_word<T>(destination, source);
  destination += sizeof(T);
  source += sizeof(T);
  bytes -= sizeof(T);
}

bool is_misaligned_at(const uint8_t* address, uintptr_t bit) {
  return (reinterpret_cast<uintptr_t>(address) & bit) != 0;
}

// The word that a poller reads: a separate piece, so that the kernel stores it last.
constexpr uint64_t kTailBytes = 8;
constexpr uint64_t kSmallBytes = 512;  // up to this length, writes appear in order, in lines of 64 bytes
constexpr uint64_t kSmallLineBytes = 64;
constexpr uint64_t kFlagLineBytes = 128,
                   kFlagOffset = 120;  // NCCL's LL128: the last word of a line marks the line as complete
constexpr size_t kCallPieces = 1024;   // of one system call: the kernel's limit

// Returns how far a piece that begins at `address` may extend.
uint64_t find_cut(uint64_t address, bool is_small, bool has_flags) {
  uint64_t reach = UINT64_MAX;
  if (is_small) reach = kSmallLineBytes - address % kSmallLineBytes;
  if (has_flags) {
    const uint64_t at = address % kFlagLineBytes;
    reach = std::min(reach, (at < kFlagOffset ? kFlagOffset : kFlagLineBytes) - at);
  }
  return reach;
}

// process_vm_writev copies the pieces in order, but the bytes of a piece in any order. Splits the source
// where order matters.
void cut_for_order(const Pieces& source, const Pieces& destination, uint64_t bytes, Pieces& cut) {
  cut.clear();
  uint64_t done = 0;
  const bool is_one = destination.size() == 1;
  const bool is_small = is_one && bytes <= kSmallBytes, has_flags = is_one && get_config().ordered_lines;
  const uint64_t start = reinterpret_cast<uint64_t>(destination[0].iov_base);
  for (const iovec& piece : source) {
    auto* at = static_cast<uint8_t*>(piece.iov_base);
    for (uint64_t left = piece.iov_len; left > 0;) {
      uint64_t take = std::min(left, find_cut(start + done, is_small, has_flags));
      if (done + kTailBytes < bytes) take = std::min(take, bytes - kTailBytes - done);
      cut.push_back({at, take});
      at += take;
      left -= take;
      done += take;
    }
  }
}

void skip_bytes(Pieces& pieces, size_t& first, uint64_t bytes) {
  while (bytes > 0) {
    iovec& piece = pieces[first];
    const uint64_t take = std::min<uint64_t>(bytes, piece.iov_len);
    piece.iov_base = static_cast<uint8_t*>(piece.iov_base) + take;
    piece.iov_len -= take;
    bytes -= take;
    if (piece.iov_len == 0) ++first;
  }
}

using Call = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

// Consumes both lists.
int copy_across(Call call, int pid, Pieces& remote, Pieces& local, uint64_t bytes) {
  size_t first_remote = 0, first_local = 0;
  while (bytes > 0) {
    const ssize_t copied =
        call(pid, local.data() + first_local, std::min(local.size() - first_local, kCallPieces),
             remote.data() + first_remote, std::min(remote.size() - first_remote, kCallPieces), 0);
    if (copied <= 0) return copied == 0 ? EFAULT : errno;
    skip_bytes(local, first_local, static_cast<uint64_t>(copied));
    skip_bytes(remote, first_remote, static_cast<uint64_t>(copied));
    bytes -= static_cast<uint64_t>(copied);
  }
  return 0;
}

void copy_within(const Pieces& destination, const Pieces& source) {
  size_t to = 0, from = 0;
  uint64_t to_done = 0, from_done = 0;
  while (to < destination.size() && from < source.size()) {
    const uint64_t take = std::min(destination[to].iov_len - to_done, source[from].iov_len - from_done);
    copy_inorder(static_cast<uint8_t*>(destination[to].iov_base) + to_done,
                 static_cast<const uint8_t*>(source[from].iov_base) + from_done, take);
    to_done += take;
    from_done += take;
    if (to_done == destination[to].iov_len) ++to, to_done = 0;
    if (from_done == source[from].iov_len) ++from, from_done = 0;
  }
}

}  // namespace

SOFTVERBS_UNCHECKED void copy_inorder(void* destination, const void* source, size_t bytes) {
  auto* to = static_cast<uint8_t*>(destination);
  const auto* from = static_cast<const uint8_t*>(source);
  copy_if<uint8_t>(to, from, bytes, is_misaligned_at(to, 1));
  copy_if<uint16_t>(to, from, bytes, is_misaligned_at(to, 2));
  copy_if<uint32_t>(to, from, bytes, is_misaligned_at(to, 4));
  copy_if<uint64_t>(to, from, bytes, is_misaligned_at(to, 8));
  copy_if<__uint128_t>(to, from, bytes, is_misaligned_at(to, 16));
  while (bytes > sizeof(Line)) copy_if<Line>(to, from, bytes, true);
  // The last line is copied word by word, because pollers read its end.
  while (bytes >= sizeof(uint64_t)) copy_if<uint64_t>(to, from, bytes, true);
  copy_if<uint32_t>(to, from, bytes, true);
  copy_if<uint16_t>(to, from, bytes, true);
  copy_if<uint8_t>(to, from, bytes, true);
}

uint64_t count_bytes(const Pieces& pieces) {
  uint64_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

int write_pieces(int pid, const Pieces& remote, const Pieces& local) {
  if (pid == 0) {
    copy_within(remote, local);
    return 0;
  }
  thread_local Pieces there, here;  // static, to keep their capacity
  const uint64_t bytes = count_bytes(local);
  there = remote;
  cut_for_order(local, remote, bytes, here);
  return copy_across(process_vm_writev, pid, there, here, bytes);
}

int write_in_any_order(int pid, Pieces& remote, Pieces& local) {
  return copy_across(process_vm_writev, pid, remote, local, count_bytes(local));
}

int read_pieces(int pid, const Pieces& remote, const Pieces& local) {
  if (pid == 0) {
    copy_within(local, remote);
    return 0;
  }
  thread_local Pieces there, here;
  there = remote;
  here = local;
  return copy_across(process_vm_readv, pid, there, here, count_bytes(local));
}

Pieces slice_pieces(const Pieces& pieces, uint64_t offset, uint64_t bytes) {
  Pieces slice;
  for (const iovec& piece : pieces) {
    if (bytes == 0) break;
    if (offset >= piece.iov_len) {
      offset -= piece.iov_len;
      continue;
    }
    const uint64_t take = std::min(bytes, piece.iov_len - offset);
    slice.push_back({static_cast<uint8_t*>(piece.iov_base) + offset, take});
    bytes -= take;
    offset = 0;
  }
  return slice;
}

}  // namespace verbena::softverbs
