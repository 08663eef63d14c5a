#include "transport/bounce_pool.h"

#include <algorithm>
#include <cstring>

#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"
#include "topology/pci_path.h"
#include "topology/topology.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kPostBatch = 64;
constexpr uint32_t kBareEntries = 32768;
constexpr int64_t kDrainMs = 1000;  // devices that say nothing: longer than any receive that has begun

struct Registry {
  std::mutex mutex;
  std::map<std::pair<int, bool>, std::weak_ptr<BouncePool>> pools;  // by GPU and by whether there are pages

  bool is_idle() {
    const std::lock_guard lock(mutex);
    return std::all_of(pools.begin(), pools.end(), [](const auto& entry) { return entry.second.expired(); });
  }
};

Registry& get_registry() {
  static const base::Lasting<Registry> registry;
  return *registry;
}

// Once for a GPU and a device: what the data of this pair crosses.
void log_distance(int gpu, const verbs::Device& device) {
  const std::string address = base::find_gpu_pci_address(gpu);
  if (address.empty() || topology::trim_to_pci_device(device.sysfs_path()).empty()) return;
  const auto& machine = topology::Topology::system();
  base::log_info("GPU %d (%s): device %s:%d is at the distance: %s", gpu,
                 machine.describe_device(address).c_str(), device.name().c_str(), device.port_number(),
                 topology::describe(machine.measure_distance(address, device.sysfs_path())));
}

}  // namespace

base::Result<std::shared_ptr<BouncePool>> BouncePool::acquire(Kind kind) {
  const int gpu = base::find_current_gpu();
  const bool has_pages = kind != Kind::kBareEntries;
  Registry& registry = get_registry();
  const std::lock_guard lock(registry.mutex);
  auto& entry = registry.pools[{gpu, has_pages}];
  if (auto pool = entry.lock()) return pool;

  auto pool = std::shared_ptr<BouncePool>(new BouncePool);
  pool->gpu_ = gpu;
  size_t pages = kBareEntries;
  if (has_pages) {
    const auto& parameters = base::parameters();
    auto region = base::Buffer::allocate(kind == Kind::kGpuPages ? base::Place::kDevice : base::Place::kHost,
                                         static_cast<size_t>(parameters.bounce_bytes));
    if (!region) return region.error();
    pool->page_bytes_ = static_cast<uint32_t>(parameters.page_bytes);
    pool->region_ = std::move(*region);
    pages = pool->region_.length_bytes() / pool->page_bytes_;
  }
  pool->infos_.resize(pages);
  entry = pool;
  return pool;
}

void* BouncePool::address_of(uint32_t page) const {
  auto* base = static_cast<uint8_t*>(region_.host() != nullptr ? region_.host() : region_.device());
  return base + offset_of(page);
}

verbs::ReceiveBuffer BouncePool::make_receive(const Rail& rail, uint32_t page) const {
  return {address_of(page), page_bytes_, rail.region_.local_key(), kPageBit | page};
}

base::Result<BouncePool::Rail*> BouncePool::open_rail(verbs::Device& device) {
  const std::lock_guard lock(mutex_);
  auto& entry = rails_[&device];
  if (entry != nullptr) return entry.get();
  auto rail = std::make_unique<Rail>();
  if (page_bytes_ != 0) {
    auto region = verbs::MemoryRegion::register_memory(device, address_of(0), region_.length_bytes(),
                                                       {.remote_read = true, .remote_write = false});
    if (!region) return region.error();
    rail->region_ = std::move(*region);
  }
  rail->capacity_entries_ = std::min(pages(), device.max_srq_entries());
  auto queue = verbs::SharedReceiveQueue::create(device, rail->capacity_entries_);
  if (!queue) return queue.error();
  rail->queue_ = std::move(*queue);
  entry = std::move(rail);
  log_distance(gpu_, device);
  return entry.get();
}

base::Result<uint32_t> BouncePool::reserve(Rail& rail, uint32_t wanted, uint32_t least) {
  reap();
  const std::lock_guard lock(mutex_);
  const uint32_t spare = rail.posted_entries_ - std::min(rail.posted_entries_, rail.promised_entries_);
  const uint32_t growth = std::min(pages() - next_free_page_, rail.capacity_entries_ - rail.posted_entries_);
  uint32_t granted = std::min(wanted, spare + growth);
  if (granted < least) {
    base::log_info(
        "bounce pool of GPU %d: full: a connection shares its entries (VERBENA_BOUNCE_BYTES %zu bytes)", gpu_,
        region_.length_bytes());
    granted = least;
  }
  uint32_t missing = granted - std::min(granted, spare);
  missing = std::min(missing, growth);
  while (missing != 0) {
    verbs::ReceiveBuffer batch[kPostBatch];
    const uint32_t count = std::min(missing, kPostBatch);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t page = next_free_page_ + i;
      batch[i] = make_receive(rail, page);
    }
    if (auto outcome = rail.queue_.post({batch, count}); !outcome) return outcome.error();
    next_free_page_ += count;
    rail.posted_entries_ += count;
    missing -= count;
  }
  rail.promised_entries_ += granted;
  return granted;
}

void BouncePool::release(Rail& rail, uint32_t entries) {
  const std::lock_guard lock(mutex_);
  rail.promised_entries_ -= entries;
}

base::Outcome BouncePool::repost(Rail& rail, std::span<const uint32_t> pages) {
  verbs::ReceiveBuffer batch[kPostBatch];
  while (!pages.empty()) {
    const size_t count = std::min<size_t>(pages.size(), kPostBatch);
    for (size_t i = 0; i < count; ++i) batch[i] = make_receive(rail, pages[i]);
    if (auto outcome = rail.queue_.post({batch, count}); !outcome) return outcome;
    pages = pages.subspan(count);
  }
  return {};
}

void BouncePool::retire(Link link, std::vector<Rail*> rails) {
  {
    const std::lock_guard lock(retired_mutex_);
    retired_.push_back({std::move(link), std::move(rails), base::Deadline::after_ms(kDrainMs)});
  }
  reap();
}

void BouncePool::reap() {
  const std::lock_guard lock(retired_mutex_);
  std::erase_if(retired_, [this](Retired& retired) {
    // Asked before the look: whatever came until then is found by it.
    const bool is_last_look = retired.link.is_drained() || retired.deadline.has_passed();
    const bool is_alive = retired.link.poll([&](const verbs::Completion& completion, uint32_t queue_pair) {
      if (!is_page_cookie(completion.cookie)) return;
      const uint32_t page = cookie_page(completion.cookie);
      static_cast<void>(repost(*retired.rails[retired.link.rail_of(queue_pair)], {&page, 1}));
    });
    return is_last_look || !is_alive;
  });
}

base::Result<std::unique_ptr<BouncePool::UnpackMemory>> BouncePool::take_unpack_memory() {
  {
    const std::lock_guard lock(mutex_);
    if (!spare_unpack_memory_.empty()) {
      auto memory = std::move(spare_unpack_memory_.back());
      spare_unpack_memory_.pop_back();
      return memory;
    }
  }
  auto memory = std::make_unique<UnpackMemory>();
  auto meta = base::Buffer::allocate(base::Place::kHost, sizeof(NetUnpackMeta));
  if (!meta) return meta.error();
  memory->meta = std::move(*meta);
  auto handle = base::Buffer::allocate(base::Place::kDevice, sizeof(UnpackDeviceHandle));
  if (!handle) return handle.error();
  memory->handle = std::move(*handle);
  return memory;
}

void BouncePool::return_unpack_memory(std::unique_ptr<UnpackMemory> memory) {
  const std::lock_guard lock(mutex_);
  std::memset(memory->host_meta()->cnt, 0, sizeof(memory->host_meta()->cnt));
  spare_unpack_memory_.push_back(std::move(memory));
}

}  // namespace verbena::transport
