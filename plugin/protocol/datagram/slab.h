// Objects with numbers, allocated in slabs. Objects do not move, freed objects are reused, and memory is
// allocated a slab at a time. Nothing is allocated unless more objects are in use than ever before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace verbena::protocol::datagram {

template <typename T, uint32_t kSlabObjects>
class Slabs {
 public:
  T& operator[](uint32_t id) { return slabs_[id / kSlabObjects][id % kSlabObjects]; }
  const T& operator[](uint32_t id) const { return slabs_[id / kSlabObjects][id % kSlabObjects]; }

  uint32_t take() {
    if (free_.empty()) return take_new();
    ++used_;
    const uint32_t id = free_.back();
    free_.pop_back();
    return id;
  }
  // The number is `least` or greater.
  uint32_t take_from(uint32_t least) {
    const auto found = std::find_if(free_.begin(), free_.end(), [least](uint32_t id) { return id >= least; });
    if (found == free_.end()) return take_new();
    std::swap(*found, free_.back());
    return take();
  }
  void give_back(uint32_t id) {
    --used_;
    free_.push_back(id);
  }
  uint32_t size() const { return size_; }  // highest number + 1, freed objects included
  uint32_t used() const { return used_; }

 private:
  uint32_t take_new() {
    ++used_;
    if (size_ == slabs_.size() * kSlabObjects) {
      slabs_.push_back(std::make_unique<T[]>(kSlabObjects));
      free_.reserve(slabs_.size() * kSlabObjects);  // so that freeing does not allocate
    }
    return size_++;
  }

  std::vector<std::unique_ptr<T[]>> slabs_;
  std::vector<uint32_t> free_;
  uint32_t size_ = 0, used_ = 0;
};

// A list of objects that are identified by numbers. `Links` selects one of an object's links: links(object)
// -> ListLink&.
inline constexpr uint32_t kNoObject = UINT32_MAX;
struct ListLink {
  uint32_t next = kNoObject, previous = kNoObject;
};

template <typename Links>
class LinkedList {
 public:
  bool is_empty() const { return first_ == kNoObject; }
  uint32_t first() const { return first_; }
  uint32_t last() const { return last_; }

  template <typename Objects>
  void append(Objects& objects, uint32_t id) {
    Links::of(objects[id]) = {kNoObject, last_};
    (last_ == kNoObject ? first_ : Links::of(objects[last_]).next) = id;
    last_ = id;
  }
  template <typename Objects>
  void remove(Objects& objects, uint32_t id) {
    const ListLink link = std::exchange(Links::of(objects[id]), {});
    (link.previous == kNoObject ? first_ : Links::of(objects[link.previous]).next) = link.next;
    (link.next == kNoObject ? last_ : Links::of(objects[link.next]).previous) = link.previous;
  }

 private:
  uint32_t first_ = kNoObject, last_ = kNoObject;
};

}  // namespace verbena::protocol::datagram
