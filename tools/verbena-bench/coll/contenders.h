// A contender carries out an operation: Verbena's library with one of its algorithms, or NCCL.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "common/gpu.h"
#include "common/nccl_library.h"
#include "verbena-bench/coll/coll_plan.h"
#include "verbena-bench/coll/ops_library.h"

namespace verbena::tools::coll {

// One operation: an all-reduce of a tensor of `count` elements, or another operation with messages of `count`
// elements.
struct Work {
  verbena_ops_operation operation = VERBENA_OPS_ALL_REDUCE;
  CUdeviceptr from = 0, to = 0;
  uint64_t count = 0;
  verbena_ops_type type = VERBENA_OPS_BFLOAT16;
  uint32_t root = 0;  // of a broadcast
};
// The operations that can be measured, by name: the library's collectives, quantised all-reduces, all-reduces
// with a norm.
struct Named {
  std::string name;
  verbena_ops_operation operation = VERBENA_OPS_ALL_REDUCE;
  verbena_ops_algorithm codec = VERBENA_OPS_AUTO;  // or the codec
  bool has_norm = false;
  verbena_ops_quantisation quantisation = VERBENA_OPS_NOT_QUANTISED;
  bool is_lossless = false;   // by VERBENA_OPS_LOSSLESS
  bool is_finalized = false;  // from the outputs of experts
};
std::vector<std::string> list_operations();
// Returns the name of the operation without encoding: "all_reduce" for "all_reduce_lossless", and any other
// name as it is.
std::string plain_name(const std::string& name);
// Throws UsageError.
Named find_operation(const std::string& name);

class Contender {
 public:
  virtual ~Contender() = default;
  virtual const std::string& name() const = 0;
  // Returns whether peers access this rank's tensors directly. Then the tensors must have the same aligned
  // offsets on all ranks.
  virtual bool needs_one_place() const { return false; }
  virtual void enqueue(const Work& work, CUstream stream) = 0;
};

class OurContender : public Contender {
 public:
  // `codec`: of a quantised all-reduce, or VERBENA_OPS_AUTO.
  OurContender(const OpsLibrary& library, verbena_ops* ops, const verbena_ops_choice& choice,
               verbena_ops_algorithm codec = VERBENA_OPS_AUTO);
  const std::string& name() const override { return name_; }
  bool needs_one_place() const override {
    return choice_.algorithm == VERBENA_OPS_DIRECT || choice_.algorithm == VERBENA_OPS_COPY_ENGINES;
  }
  void enqueue(const Work& work, CUstream stream) override;

 private:
  const OpsLibrary& library_;
  verbena_ops* ops_;
  verbena_ops_choice choice_;
  verbena_ops_algorithm codec_;
  std::string name_;
};

// The further tensors of a norm. The residual is zero, the weight is one. The rows of experts, kTopK for each
// token, are zero and have the weight one.
struct NormPlaces {
  static constexpr uint32_t kTopK = 8;
  CUdeviceptr residual_in = 0, residual_out = 0, weight = 0, sum = 0, quantised = 0, scales = 0;
  CUdeviceptr expert_rows = 0, indices = 0, expert_weights = 0;
  uint64_t hidden = 0;
};
// Variants of an all-reduce with a norm: Verbena's fused call; another contender's all-reduce followed by
// Verbena's norm; or the all-reduce alone.
class NormContender : public Contender {
 public:
  enum class Kind { kFused, kApart, kBare };
  NormContender(const OpsLibrary& library, verbena_ops* ops, const NormPlaces& places, const Named& what,
                Kind kind, Contender* all_reduce, const std::string& name,
                const verbena_ops_choice& choice = {});
  const std::string& name() const override { return name_; }
  void enqueue(const Work& work, CUstream stream) override;

 private:
  const OpsLibrary& library_;
  verbena_ops* ops_;
  NormPlaces places_;
  Named what_;
  Kind kind_;
  Contender* all_reduce_;  // not for kFused
  std::string name_;
  // Used by kFused. If it names an algorithm that sends packets, one kernel is used at any size.
  verbena_ops_choice choice_;
};

// One communicator with all its channels, as in an application.
class NcclContender : public Contender {
 public:
  NcclContender(const std::string& library, const std::string& id, unsigned rank, unsigned count_ranks);
  const std::string& name() const override { return name_; }
  void enqueue(const Work& work, CUstream stream) override;

 private:
  nccl::NcclLibrary library_;
  nccl::NcclComm comm_ = nullptr;
  unsigned count_ranks_;
  std::string name_;
};
// The unique id for all ranks, in hexadecimal digits.
std::string make_nccl_id(const std::string& library);

// "one-shot".
const char* describe_algorithm(verbena_ops_algorithm algorithm);
// Returns the algorithms that are worth measuring for a number of bytes.
std::vector<verbena_ops_choice> list_choices_across_hosts(verbena_ops_algorithm codec, uint64_t bytes,
                                                          uint32_t max_blocks);
std::vector<verbena_ops_choice> list_choices(verbena_ops_operation operation, uint64_t bytes, unsigned ranks,
                                             uint32_t max_blocks);
std::vector<verbena_ops_choice> list_coded_choices(verbena_ops_algorithm codec, uint64_t bytes,
                                                   uint32_t max_blocks);

}  // namespace verbena::tools::coll
