#include "transport/datagram/page_pool.h"

#include <cerrno>

#include "base/log.h"

namespace verbena::transport::datagram {

base::Result<PagePool> PagePool::create(uint32_t pages) {
  PagePool pool;
  pool.pages_.resize(pages);
  pool.free_.reserve(pages);
  for (uint32_t page = pages; page != 0; --page) pool.free_.push_back(page - 1);
  pool.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, pool.length_bytes())));
  if (pool.memory_ == nullptr)
    return base::fail_errno(base::Status::kSystem, ENOMEM, "datagrams: cannot take %u pages of %u bytes",
                            pages, kPageBytes);
  return pool;
}

}  // namespace verbena::transport::datagram
