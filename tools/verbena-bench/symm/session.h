// The connection of a rank to the others through verbena.h; all backends start with it.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "verbena-bench/symm/symm_plan.h"
#include "verbena/verbena.hpp"

namespace verbena::tools::symm {

// Room for windows: twice the longest put of rank.cuh, its workspace, and some more.
inline constexpr size_t kHeapBytes = (size_t{2} * 256 << 20) + (size_t{34} << 20);

inline verbena_unique_id parse_id(const std::string& digits) {
  verbena_unique_id id{};
  bench::from_digits(digits, id.bytes, sizeof(id.bytes));
  return id;
}

// An exchange between the ranks of a host before their backend exists: a file that all ranks map.
class Meeting {
 public:
  static constexpr size_t kMaxBytes = 4096;  // of one rank

  explicit Meeting(const SymmPlan& plan)
      : context_(parse_id(plan.id), plan.rank, plan.count_ranks), file_{name_file(plan.id)} {
    // Only rank 0 creates the file, which must not exist. Other ranks refuse a file of another user.
    if (rank() == 0) map(file_.make(), true);
    context_.barrier();
    if (rank() != 0) map(shm_open(file_.name.c_str(), O_RDWR, 0600), false);
    context_.barrier();
    file_.remove();
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  uint32_t rank() const { return context_.rank(); }
  uint32_t size() const { return context_.size(); }

  void gather(const void* mine, void* all, size_t bytes_each) {
    if (bytes_each > kMaxBytes)
      throw std::runtime_error("the shared memory of the ranks is too small for a report");
    std::memcpy(mapping_.memory + rank() * bytes_each, mine, bytes_each);
    context_.barrier();
    std::memcpy(all, mapping_.memory, bytes_each * size());
    context_.barrier();
  }

 private:
  // They are removed even if the constructor throws.
  struct File {
    const std::string name;
    bool is_made = false;

    int make() {
      const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
      is_made = file >= 0;
      return file;
    }
    void remove() {
      if (std::exchange(is_made, false)) shm_unlink(name.c_str());
    }
    ~File() { remove(); }
  };
  struct Mapping {
    char* memory = nullptr;
    size_t bytes = 0;

    ~Mapping() {
      if (memory != nullptr) munmap(memory, bytes);
    }
  };

  size_t length_bytes() const { return kMaxBytes * size(); }
  // The file's name contains the job's rendezvous address and part of its nonce, but nothing of its secret.
  static std::string name_file(const std::string& id) {
    constexpr size_t kNamedBytes = 64;
    return "/verbena-bench-" + id.substr(0, 2 * kNamedBytes);
  }
  void map(int file, bool is_new) {
    struct stat status {};
    const auto length = static_cast<off_t>(length_bytes());
    const bool is_usable = file >= 0 && (!is_new || ftruncate(file, length) == 0) &&
                           fstat(file, &status) == 0 && status.st_uid == geteuid() &&
                           status.st_size == length;
    void* const mapped =
        is_usable ? mmap(nullptr, length_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0) close(file);
    if (mapped == MAP_FAILED)
      throw std::runtime_error(file_.name +
                               ": the shared memory cannot be opened, or belongs to another user");
    mapping_.memory = static_cast<char*>(mapped);
    mapping_.bytes = length_bytes();
  }

  SymmetricContext context_;
  File file_;
  Mapping mapping_;
};

}  // namespace verbena::tools::symm
