// The finalize step of a mixture of experts: the weighted sum of the rows that this rank's experts have
// computed for a token, and the token's row of a shared expert.
//
//   x[r] = shared[r] + sum over k of weights[r][k] * rows[indices[r][k]]
//
// finalize_rows() writes x to memory. all_reduce_norm() of all_reduce_norm.cuh sends x from registers. The
// terms are added as floats: first the shared row, then the rows of k = 0, 1, and so on, each by one
// add_product(). x is rounded once. So the results have the same bits in every kernel.
#ifndef VERBENA_DEVICE_MOE_FINALIZE_CUH
#define VERBENA_DEVICE_MOE_FINALIZE_CUH

#include "verbena/device/rms_norm.cuh"

namespace verbena::device {

// The tensors of the finalize step. Strides are distances between the starts of rows, in elements. Rows have
// as many elements as the rows of x.
template <typename T>
struct MoeFinalize {
  const T* rows;
  uint64_t row_stride;
  const int32_t* indices;  // [rows of x][top_k]; a negative index adds nothing
  const float* weights;    // [rows of x][top_k]; if null, all weights are 1
  uint32_t top_k;
  const T* shared;  // [rows of x]; null if there is no shared expert
  uint64_t shared_stride;
};

// The rows of x, as the input of all_reduce_norm(). The functions are those of StoredRows.
template <typename T>
class FinalizedRows {
 public:
  VERBENA_DEVICE explicit FinalizedRows(const MoeFinalize<T>& tensors) : tensors_(tensors) {
    const bool is_aligned = detail::is_vector(tensors.rows, tensors.row_stride) &&
                            detail::is_vector(tensors.shared, tensors.shared_stride);
    is_aligned_ = keep(is_aligned ? 1u : 0);
  }

  VERBENA_DEVICE void begin(uint64_t row, uint64_t) { row_ = row; }
  VERBENA_DEVICE void advance(uint64_t rows, uint64_t) { row_ += rows; }
  // @param norm  a RowNorm, which knows the length of the rows
  // @return a vector of the row, with zeros after the end of the row
  template <typename RowNorm>
  VERBENA_DEVICE Packed<T> load(const RowNorm& norm, uint64_t vector) const {
    const auto load_vector = [&](const T* from) {
      return norm.load_elements(from, vector, is_aligned_ != 0);
    };
    PackedSum<T> sum;
    sum.begin(tensors_.shared == nullptr ? Packed<T>{}
                                         : load_vector(tensors_.shared + row_ * tensors_.shared_stride));
    const uint64_t first = row_ * tensors_.top_k;
    VERBENA_UNROLL_BY(1)
    for (uint32_t begin = 0; begin < tensors_.top_k; begin += kAtOnce) {
      // The loads of several experts' rows are in flight at the same time.
      int32_t indices[kAtOnce];
      float weights[kAtOnce];
      Packed<T> terms[kAtOnce];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t k = begin + i;
        indices[i] = k < tensors_.top_k ? load_weak(tensors_.indices + first + k) : -1;
        weights[i] =
            indices[i] >= 0 && tensors_.weights != nullptr ? load_weak(tensors_.weights + first + k) : 1.0F;
      }
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i)
        terms[i] = indices[i] < 0
                       ? Packed<T>{}
                       : load_vector(tensors_.rows + static_cast<uint64_t>(indices[i]) * tensors_.row_stride);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (indices[i] >= 0) detail::add_product(sum, weights[i], terms[i]);
      }
    }
    return sum.round();
  }

 private:
  static constexpr uint32_t kAtOnce = 8;
  template <typename Value>
  VERBENA_DEVICE static Value load_weak(const Value* from) {
    return device::load<Order::kWeak, Scope::kThreads>(from);
  }

  MoeFinalize<T> tensors_;
  uint64_t row_ = 0;
  uint32_t is_aligned_;
};

// Writes rows first, first + step, and so on (below `rows`) of x. All threads of a block make the call.
// @param x  contiguous rows of `hidden` elements; must not overlap the tensors of the finalize step
template <typename T>
VERBENA_DEVICE void finalize_rows(FinalizedRows<T> source, T* x, uint64_t rows, uint64_t hidden,
                                  uint64_t first, uint64_t step) {
  RmsNorm<T> shape{};
  shape.rows = rows;
  shape.hidden = hidden;
  const detail::RowNorm<T, 1> norm(shape);
  source.begin(first, hidden);
  const bool is_aligned = detail::is_vector(x, hidden);
  for (uint64_t row = first; row < rows; row += step, source.advance(step, 0)) {
    for (uint64_t vector = thread_index(); vector < norm.count_vectors(); vector += threads_per_block())
      norm.store_elements(x + row * hidden, vector, source.load(norm, vector), is_aligned);
  }
}

}  // namespace verbena::device

#endif
