#include "transport/one_sided/add_agent.h"

#include <atomic>
#include <utility>

namespace verbena::transport {

using protocol::AddEntry;

base::Result<std::unique_ptr<AddRings>> AddRings::create(std::span<verbs::Device* const> devices,
                                                         uint32_t lanes) {
  auto made = std::make_unique<AddRings>();
  made->rings = std::make_unique<protocol::AddRing[]>(lanes);
  for (verbs::Device* device : devices) {
    auto region = verbs::MemoryRegion::register_memory(
        *device, made->rings.get(), lanes * sizeof(protocol::AddRing), {.remote_write = true});
    if (!region && !device->has_failed()) return region.error();
    made->registrations.push_back(region ? std::move(*region) : verbs::MemoryRegion());
  }
  return made;
}

bool AddAgent::serve(Lane& lane, std::string* problem) {
  const uint32_t& held = held_[lane.index()];
  if (held != 0 && !loop_->is_collecting()) return true;  // its later adds wait for the outstanding ones
  for (AddEntry entry; lane.find_asked(held, &entry);) {
    const LocalRegion* region = regions_.find_local(entry.region());
    std::byte* const place = region == nullptr ? nullptr : region->address + entry.offset;
    const bool is_word = region != nullptr && is_inside(region->bytes, entry.offset, protocol::kWordBytes) &&
                         reinterpret_cast<uintptr_t>(place) % protocol::kWordBytes == 0;
    if (!is_word) {
      *problem = "the peer asks for an add at offset " + std::to_string(entry.offset) + " of region " +
                 std::to_string(entry.region()) + ", but this rank has no aligned word at that offset";
      return false;
    }
    if (!region->is_host || options_.loops_all) {
      if (!collect(lane, *region, entry)) return true;
    } else {
      if (held != 0) return true;
      std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(place));
      lane.answer_asked(word.fetch_add(entry.operand, std::memory_order_acq_rel));
    }
  }
  return true;
}

bool AddAgent::collect(Lane& lane, const LocalRegion& region, const AddEntry& entry) {
  if (loop_ == nullptr) {
    auto made = WordLoop::create(options_.devices, options_.completions);
    if (!made) {
      failure_ = "cannot register the memory for adds to words in GPU memory";
      return false;
    }
    loop_ = std::move(*made);
  }
  if (!loop_->is_collecting()) return false;
  const uint32_t word = loop_->find_word(region, entry.offset);
  if (word == WordLoop::kMaxWords) return false;
  loop_->add(word, entry.operand);
  jobs_.push_back({&lane, word, entry.operand});
  ++held_[lane.index()];
  return true;
}

void AddAgent::begin(uint32_t rail) {
  if (loop_ == nullptr) return;
  loop_->advance(rail);
  if (!loop_->failure().empty()) failure_ = loop_->failure();
}

}  // namespace verbena::transport
