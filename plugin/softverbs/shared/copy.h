// Copies of host memory, within a process or between two processes, by gather lists. Some pollers rely on the
// order in which bytes appear; copy_inorder() keeps this order.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::softverbs {

// Copies so that another thread sees the bytes appear in ascending order, in lines of 32 bytes (aligned at
// the destination) or in smaller units. Threads that poll a message's last word or LL128's flag words rely on
// this order.
void copy_inorder(void* destination, const void* source, size_t bytes);

using Pieces = std::vector<iovec>;  // a gather list; empty pieces are allowed

uint64_t count_bytes(const Pieces& pieces);

// Copies between gather lists of equal length. If `pid` is 0, `remote` lies in this process, otherwise in the
// process `pid`. Returns 0 or an errno; on an error, some of the bytes may have been copied.
int write_pieces(int pid, const Pieces& remote, const Pieces& local);
// Copies to another process, to many destinations with one call. The bytes may appear in any order. Consumes
// both lists.
int write_in_any_order(int pid, Pieces& remote, Pieces& local);
int read_pieces(int pid, const Pieces& remote, const Pieces& local);

// Returns the part [offset, offset + bytes) of a gather list.
Pieces slice_pieces(const Pieces& pieces, uint64_t offset, uint64_t bytes);

}  // namespace verbena::softverbs
