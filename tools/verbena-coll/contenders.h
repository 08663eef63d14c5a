// Who does an operation: our library in one of its ways, or NCCL.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "common/gpu.h"
#include "common/nccl_library.h"
#include "verbena-coll/ops_library.h"
#include "verbena-coll/plan.h"

namespace verbena::tools::coll {

// One operation on a tensor of `count` elements.
struct Work {
  CUdeviceptr from = 0, to = 0;
  uint64_t count = 0;
  verbena_ops_type type = VERBENA_OPS_BFLOAT16;
};

class Contender {
 public:
  virtual ~Contender() = default;
  virtual const std::string& name() const = 0;
  virtual void enqueue(const Work& work, CUstream stream) = 0;
};

class OurContender : public Contender {
 public:
  OurContender(const OpsLibrary& library, verbena_ops* ops, const verbena_ops_choice& choice);
  const std::string& name() const override { return name_; }
  void enqueue(const Work& work, CUstream stream) override;

 private:
  const OpsLibrary& library_;
  verbena_ops* ops_;
  verbena_ops_choice choice_;
  std::string name_;
};

// One communicator, with all its channels, as an application has it.
class NcclContender : public Contender {
 public:
  NcclContender(const std::string& library, const std::string& id, unsigned rank, unsigned count_ranks);
  const std::string& name() const override { return name_; }
  void enqueue(const Work& work, CUstream stream) override;

 private:
  nccl::NcclLibrary library_;
  nccl::NcclComm comm_ = nullptr;
  std::string name_;
};
// For all ranks, in hexadecimal digits.
std::string make_nccl_id(const std::string& library);

// "one-shot-16".
const char* describe_algorithm(verbena_ops_algorithm algorithm);
// The ways worth a try for so many bytes.
std::vector<verbena_ops_choice> list_choices(uint64_t bytes, unsigned ranks, uint32_t most_blocks);

std::string to_digits(const void* data, size_t length_bytes);
// Throws ToolError.
void from_digits(const std::string& digits, void* data, size_t length_bytes);

}  // namespace verbena::tools::coll
