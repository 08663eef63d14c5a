// Copies of host memory within a process and between two, by gather lists. Verbs promise the order of
// bytes only to some pollers; copy_inorder() keeps it for them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::softverbs {

// Copies so that another thread sees the bytes appear in ascending order, by 32-byte lines (aligned to the
// destination) or smaller: pollers of a message's last word, and of LL128's flag words, rely on it.
void copy_inorder(void* destination, const void* source, size_t bytes);

using Pieces = std::vector<iovec>;  // a gather list; empty pieces are allowed

uint64_t count_bytes(const Pieces& pieces);

// Between gather lists of equal length. `pid` is 0 for this process, else `remote` lies in that process. 0 or
// an errno; on an error some of the bytes may have been copied.
int write_pieces(int pid, const Pieces& remote, const Pieces& local);
// The same in no order, of many destinations at a time, in another process. Uses up both lists.
int write_in_any_order(int pid, Pieces& remote, Pieces& local);
int read_pieces(int pid, const Pieces& remote, const Pieces& local);

// The part [offset, offset + bytes) of a gather list.
Pieces slice_pieces(const Pieces& pieces, uint64_t offset, uint64_t bytes);

}  // namespace verbena::softverbs
