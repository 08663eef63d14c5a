#include "verbena-perf/fifo.h"

#include <algorithm>

#include "common/pattern.h"

namespace verbena::tools::perf {
namespace {

constexpr uint64_t kPageBytes = PageMemory::kPageBytes;

uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Fifo::Fifo(NetPlugin& plugin, void* comm, const PerfOptions& options, uint64_t offset_bytes,
           const Fifo* lender)
    : window_(options.window), offset_bytes_(offset_bytes) {
  const size_t active = options.protocol == Protocol::kLl ? 0 : options.protocol == Protocol::kLl128 ? 1 : 2;
  slice_bytes_ = round_up(kNcclBufferBytes[active] / kNcclSlices, kPageBytes);
  const uint64_t longest = *std::max_element(options.sizes_bytes.begin(), options.sizes_bytes.end());
  const uint64_t needed = window_ * stride(longest);
  const int type = options.cuda_type ? abi::kPtrCuda : abi::kPtrHost;
  regions_.reserve(std::size(kNcclBufferBytes) + 1);
  for (size_t index = 0; index < std::size(kNcclBufferBytes); ++index) {
    const bool carries = index == active && !options.user_buffer;
    add_region(plugin, comm,
               carries ? std::max<size_t>(kNcclBufferBytes[index], needed) : kNcclBufferBytes[index], type,
               lender);
  }
  if (options.user_buffer) add_region(plugin, comm, needed, type, lender);
  active_ = &regions_[options.user_buffer ? std::size(kNcclBufferBytes) : active];
}

void Fifo::add_region(NetPlugin& plugin, void* comm, size_t length_bytes, int type, const Fifo* lender) {
  Region region{lender != nullptr ? lender->regions_[regions_.size()].memory
                                  : std::make_shared<PageMemory>(length_bytes + kPageBytes),
                nullptr};
  region.mhandle = plugin.register_memory(comm, region.memory->data(), length_bytes, type);
  regions_.push_back(std::move(region));
}

void Fifo::release(NetPlugin& plugin, void* comm) {
  for (const Region& region : regions_) plugin.deregister_memory(comm, region.mhandle);
  regions_.clear();
  active_ = nullptr;
}

uint64_t Fifo::stride(uint64_t length_bytes) const {
  return std::max(slice_bytes_, round_up(length_bytes + offset_bytes_ + kGuardLengthBytes, kPageBytes));
}

uint64_t Fifo::receive_length(uint64_t length_bytes) const {
  return std::max(length_bytes, slice_bytes_ - std::min(offset_bytes_, slice_bytes_));
}

std::span<std::byte> Fifo::place(uint64_t index, uint64_t length_bytes) const {
  std::byte* const start = active_->memory->data() + (index % window_) * stride(length_bytes) + offset_bytes_;
  return {start, length_bytes};
}

std::span<std::byte> Fifo::guard(uint64_t index, uint64_t length_bytes) const {
  const std::span<std::byte> message = place(index, length_bytes);
  return {message.data() + message.size(), kGuardLengthBytes};
}

}  // namespace verbena::tools::perf
