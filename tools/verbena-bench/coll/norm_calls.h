// Random calls of verbena_ops_all_reduce_norm() and its relatives, and the results that they must have.
#pragma once
#include <string>
#include <vector>

#include "common/gpu.h"
#include "verbena-bench/coll/coll_plan.h"
#include "verbena-bench/coll/numbers.h"
#include "verbena-bench/coll/ops_library.h"
#include "verbena-bench/coll/random_calls.h"

namespace verbena::tools::coll {

// The sum and the norm of all ranks' tensors; the same, with the norm split between the ranks; the norm of
// this rank's tensor; the sum and the norm of the finalized outputs of experts.
enum class NormForm { kAllReduce, kShares, kRows, kFinalize };

// A call with its tensors, in the memory of random calls. The shape is drawn from `common`, alike on all
// ranks; the offsets of tensors, and which of them are in place, from `own`.
class NormCall {
 public:
  NormCall(const CollPlan& plan, Gpu& gpu, const RandomPlaces& places, Random& common, Random& own);
  std::string describe() const;
  // Fills the tensors.
  void prepare() const;
  // Throws ToolError if the library refuses the call.
  void enqueue(const OpsLibrary& library, verbena_ops* ops, CUstream stream) const;
  // Returns the number of wrong elements and of wrong bytes beside the tensors.
  uint64_t count_wrong() const;

 private:
  // The rows of the residual and of the sum that this rank has.
  struct Share {
    uint64_t first, rows;
  };
  Share share() const;
  uint64_t elements() const { return shape_.rows * shape_.hidden; }
  Bytes make_sum() const;
  Bytes make_residual(Share rows) const;
  Bytes make_weight() const;
  // `extent` bytes at `address`; counts the bytes in a margin on each side that were written.
  Bytes read(CUdeviceptr address, uint64_t extent, uint64_t& wrong) const;
  uint64_t count_wrong_quantised(const std::vector<float>& normed) const;

  struct Shape {
    NormForm form;
    verbena_ops_type type;
    uint64_t rows, hidden, padding;
    verbena_ops_quantisation quantisation;
    verbena_ops_choice choice;
    bool has_residual, has_weight, has_output, rounds_sum, rounds_normed;
    float weight_offset;
    uint32_t number;
    uint64_t blocks() const;  // of a row's scales
    uint64_t step() const { return hidden + padding; }
  };
  static Shape draw_shape(const CollPlan& plan, uint64_t most, Random& common);

  const CollPlan& plan_;
  Gpu& gpu_;
  Shape shape_;
  CUdeviceptr input_, residual_in_, weight_, sum_, output_, residual_out_, quantised_, scales_;
  CUdeviceptr indices_;  // of kFinalize: input_ has the rows in reverse order
};

}  // namespace verbena::tools::coll
