#include "verbena-bench/coll/norm_calls.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

namespace verbena::tools::coll {
namespace {

constexpr uint64_t kTensors = 4;  // in each of the two windows
constexpr uint64_t kBlock = 128;  // elements that share a scale of VERBENA_OPS_FP8_BLOCK
constexpr float kEpsilon = 1e-5F;
constexpr uint32_t kTopK = 2;  // of kFinalize: one expert has a row for the token, the other has none
// Large enough for the largest element: sqrt(hidden) times the largest weight.
constexpr float kTensorScale = 4;

bool is_of_blocks(verbena_ops_quantisation quantisation) {
  return quantisation == VERBENA_OPS_FP8_BLOCK || quantisation == VERBENA_OPS_FP8_BLOCK_POWER;
}

}  // namespace

uint64_t NormCall::Shape::blocks() const {
  return is_of_blocks(quantisation) ? (hidden + kBlock - 1) / kBlock : 1;
}

NormCall::Shape NormCall::draw_shape(const CollPlan& plan, uint64_t most, Random& common) {
  constexpr verbena_ops_quantisation kQuantisations[] = {VERBENA_OPS_NOT_QUANTISED,   VERBENA_OPS_FP8_TENSOR,
                                                         VERBENA_OPS_FP8_TOKEN,       VERBENA_OPS_FP8_BLOCK,
                                                         VERBENA_OPS_FP8_BLOCK_POWER, VERBENA_OPS_INT8_TOKEN};
  constexpr verbena_ops_algorithm kOfTensors[] = {VERBENA_OPS_AUTO, VERBENA_OPS_ONE_SHOT,
                                                  VERBENA_OPS_TWO_SHOT, VERBENA_OPS_BULK_ONE_SHOT,
                                                  VERBENA_OPS_BULK_TWO_SHOT};
  constexpr verbena_ops_algorithm kOfShares[] = {VERBENA_OPS_AUTO, VERBENA_OPS_ONE_SHOT,
                                                 VERBENA_OPS_BULK_ONE_SHOT};
  const auto flip = [&] { return draw_number(common, 0, 1) == 1; };
  Shape shape{};
  const bool is_of_one_host = plan.hosts == 1;
  shape.form = static_cast<NormForm>(draw_number(common, 0, 3));
  if (!is_of_one_host && shape.form == NormForm::kShares) shape.form = NormForm::kAllReduce;
  shape.type = flip() ? VERBENA_OPS_FLOAT16 : VERBENA_OPS_BFLOAT16;
  shape.hidden = draw_number(common, 1, std::min<uint64_t>(most, 1500));
  if (flip() && shape.hidden > 8) shape.hidden = shape.hidden / 8 * 8;  // whole vectors
  shape.padding = draw_number(common, 0, 3) == 0 ? draw_number(common, 1, 16) : 0;
  shape.rows = draw_number(common, 1, std::clamp<uint64_t>(most / (shape.hidden + 16), 1, 40));
  shape.quantisation = kQuantisations[draw_number(common, 0, std::size(kQuantisations) - 1)];
  shape.has_residual = draw_number(common, 0, 3) != 0;
  shape.has_weight = draw_number(common, 0, 3) != 0;
  shape.has_output = shape.quantisation == VERBENA_OPS_NOT_QUANTISED || flip();
  shape.rounds_sum = flip();
  shape.rounds_normed = flip();
  shape.weight_offset = flip() ? 1.0F : 0.0F;
  shape.number = static_cast<uint32_t>(common());
  if (is_of_one_host && (shape.form == NormForm::kAllReduce || shape.form == NormForm::kFinalize))
    shape.choice.algorithm = kOfTensors[draw_number(common, 0, std::size(kOfTensors) - 1)];
  if (shape.form == NormForm::kShares)
    shape.choice.algorithm = kOfShares[draw_number(common, 0, std::size(kOfShares) - 1)];
  return shape;
}

NormCall::NormCall(const CollPlan& plan, Gpu& gpu, const RandomPlaces& places, Random& common, Random& own)
    : plan_(plan), gpu_(gpu) {
  const uint64_t part = places.bytes / kTensors;
  // Scales take four bytes, of rows that may have one element.
  shape_ = draw_shape(plan, (part - 4 * kMargin) / sizeof(float), common);
  const auto place = [&](CUdeviceptr window, uint64_t index) {
    const uint64_t offset = draw_number(own, 0, 1) == 0 ? 0 : draw_number(own, 0, 15);
    return window + index * part + kMargin + offset * get_element_bytes(shape_.type);
  };
  input_ = place(places.inputs, 0);
  indices_ = places.inputs + part / 4 * 3 / sizeof(int32_t) * sizeof(int32_t);  // after the input
  residual_in_ = place(places.inputs, 1);
  weight_ = place(places.inputs, 2);
  output_ = place(places.outputs, 0);
  residual_out_ = draw_number(own, 0, 1) == 0 ? residual_in_ : place(places.outputs, 1);
  quantised_ = place(places.outputs, 2);
  scales_ = places.outputs + 3 * part + kMargin;
  sum_ = place(places.inputs, 3);
  if (shape_.form != NormForm::kAllReduce && shape_.form != NormForm::kFinalize) return;
  const uint64_t target = draw_number(own, 0, shape_.form == NormForm::kAllReduce ? 2 : 0);
  if (target == 0 && shape_.has_output && shape_.padding == 0) sum_ = output_;
  if (target == 1) sum_ = input_;
}

std::string NormCall::describe() const {
  constexpr const char* kNames[] = {"all_reduce_norm", "reduce_scatter_norm_all_gather", "norm_rows",
                                    "moe_finalize_all_reduce_norm"};
  return std::string(kNames[static_cast<int>(shape_.form)]) + " type " + std::to_string(shape_.type) +
         " rows " + std::to_string(shape_.rows) + " hidden " + std::to_string(shape_.hidden) + " padding " +
         std::to_string(shape_.padding) + " quantisation " + std::to_string(shape_.quantisation) +
         " algorithm " + std::to_string(shape_.choice.algorithm) + (shape_.has_residual ? " residual" : "") +
         (shape_.has_weight ? " weight" : "") + (shape_.has_output ? " output" : "") +
         (shape_.rounds_sum ? " rounds sum" : "") + (shape_.rounds_normed ? " rounds normed" : "") +
         (sum_ == output_  ? ", sum in output"
          : sum_ == input_ ? ", sum in place"
                           : "");
}

NormCall::Share NormCall::share() const {
  if (shape_.form != NormForm::kShares) return {0, shape_.rows};
  const uint64_t rows = (shape_.rows + plan_.count_ranks - 1) / plan_.count_ranks;
  const uint64_t first = std::min(plan_.rank * rows, shape_.rows);
  return {first, std::min(rows, shape_.rows - first)};
}

Bytes NormCall::make_sum() const {
  if (shape_.form == NormForm::kRows) return make_input(shape_.type, elements(), plan_.rank, shape_.number);
  return make_reduced(shape_.type, VERBENA_OPS_SUM, elements(), plan_.count_ranks, shape_.number,
                      plan_.count_ranks / plan_.hosts);
}
// Residual and weights are alike on all ranks: those of ranks that do not exist.
Bytes NormCall::make_residual(Share rows) const {
  const Bytes all = make_input(shape_.type, elements(), plan_.count_ranks, shape_.number);
  const uint64_t row_bytes = shape_.hidden * get_element_bytes(shape_.type);
  const auto begin = all.begin() + static_cast<int64_t>(rows.first * row_bytes);
  return {begin, begin + static_cast<int64_t>(rows.rows * row_bytes)};
}
Bytes NormCall::make_weight() const {
  return make_input(shape_.type, shape_.hidden, plan_.count_ranks + 1, shape_.number);
}

void NormCall::prepare() const {
  const auto write = [&](CUdeviceptr to, const Bytes& data) {
    if (!data.empty()) gpu_.write(to, data.data(), data.size(), plan_.timeout_s);
  };
  Bytes input = make_input(shape_.type, elements(), plan_.rank, shape_.number);
  if (shape_.form == NormForm::kFinalize) {
    const uint64_t row_bytes = shape_.hidden * get_element_bytes(shape_.type);
    Bytes reversed;
    std::vector<int32_t> indices;
    for (uint64_t row = shape_.rows; row-- > 0;) {
      const auto begin = input.begin() + static_cast<int64_t>(row * row_bytes);
      reversed.insert(reversed.end(), begin, begin + static_cast<int64_t>(row_bytes));
      const auto index = static_cast<int32_t>(row);
      indices.insert(indices.end(), {row % 2 == 0 ? index : -1, row % 2 == 0 ? -1 : index});
    }
    input = std::move(reversed);
    gpu_.write(indices_, indices.data(), indices.size() * sizeof(int32_t), plan_.timeout_s);
  }
  write(input_, input);
  write(residual_in_, make_residual(share()));
  write(weight_, make_weight());
  if (shape_.quantisation == VERBENA_OPS_FP8_TENSOR)
    gpu_.write(scales_, &kTensorScale, sizeof(kTensorScale), plan_.timeout_s);
}

void NormCall::enqueue(const OpsLibrary& library, verbena_ops* ops, CUstream stream) const {
  verbena_ops_norm norm{};
  norm.rows = shape_.rows;
  norm.hidden = shape_.hidden;
  norm.weight = shape_.has_weight ? as_pointer(weight_) : nullptr;
  norm.epsilon = kEpsilon;
  norm.weight_offset = shape_.weight_offset;
  norm.rounds_sum = shape_.rounds_sum ? 1 : 0;
  norm.rounds_normed = shape_.rounds_normed ? 1 : 0;
  norm.residual_in = shape_.has_residual ? as_pointer(residual_in_) : nullptr;
  norm.residual_out = as_pointer(residual_out_);
  norm.output = shape_.has_output ? as_pointer(output_) : nullptr;
  norm.residual_in_stride = norm.residual_out_stride = shape_.hidden;
  norm.output_stride = norm.quantised_stride = shape_.step();
  norm.padding = shape_.padding;
  norm.quantisation = shape_.quantisation;
  norm.quantised = as_pointer(quantised_);
  norm.scales = as_pointer(scales_);
  norm.scale_row_stride = shape_.blocks();
  norm.scale_block_stride = 1;
  const void* const input = as_pointer(input_);
  void* const sum = as_pointer(sum_);
  switch (shape_.form) {
    case NormForm::kAllReduce:
      return check(library.verbena_ops_all_reduce_norm(ops, input, sum, shape_.type, &norm, VERBENA_OPS_AUTO,
                                                       &shape_.choice, stream),
                   describe().c_str());
    case NormForm::kShares:
      return check(library.verbena_ops_reduce_scatter_norm_all_gather(ops, input, sum, shape_.type, &norm,
                                                                      &shape_.choice, stream),
                   describe().c_str());
    case NormForm::kFinalize: {
      const verbena_ops_moe_finalize finalize{
          input, shape_.hidden, static_cast<const int32_t*>(as_pointer(indices_)), nullptr, kTopK, nullptr,
          0};
      return check(library.verbena_ops_moe_finalize_all_reduce_norm(ops, &finalize, sum, shape_.type, &norm,
                                                                    VERBENA_OPS_AUTO, &shape_.choice, stream),
                   describe().c_str());
    }
    case NormForm::kRows:
      return check(library.verbena_ops_norm_rows(ops, input, shape_.hidden, shape_.type, &norm, stream),
                   describe().c_str());
  }
}

Bytes NormCall::read(CUdeviceptr address, uint64_t extent, uint64_t& wrong) const {
  Bytes all(extent + 2 * kMargin);
  gpu_.read(all.data(), address - kMargin, all.size(), plan_.timeout_s);
  for (uint64_t i = 0; i < kMargin; ++i)
    wrong += (all[i] != kUntouched) + (all[all.size() - 1 - i] != kUntouched);
  return {all.begin() + kMargin, all.end() - kMargin};
}

uint64_t NormCall::count_wrong() const {
  const uint64_t element = get_element_bytes(shape_.type), hidden = shape_.hidden;
  // Half a unit in the last place, for each rounding of an element.
  const double rounding = shape_.type == VERBENA_OPS_FLOAT16 ? 0x1p-11 : 0x1p-8;
  const Share own = share();
  const std::vector<float> sum = widen_all(shape_.type, make_sum());
  const std::vector<float> residual = widen_all(shape_.type, make_residual({0, shape_.rows}));
  const std::vector<float> weight = widen_all(shape_.type, make_weight());
  uint64_t wrong = 0;
  if (sum_ != output_ && shape_.form != NormForm::kRows) {
    const Bytes got = read(sum_, own.rows * hidden * element, wrong), expected = make_sum();
    const uint64_t first = own.first * hidden * element;
    for (uint64_t i = 0; i < got.size(); ++i) wrong += got[i] != expected[first + i];
  }
  const std::vector<float> got_residual =
      widen_all(shape_.type, read(residual_out_, own.rows * hidden * element, wrong));
  std::vector<float> normed(elements());
  for (uint64_t row = 0; row < shape_.rows; ++row) {
    double squares = 0;
    for (uint64_t i = row * hidden; i < (row + 1) * hidden; ++i) {
      const float added = shape_.has_residual ? sum[i] + residual[i] : sum[i];
      const float rounded = round_number(shape_.type, added);
      if (row >= own.first && row < own.first + own.rows)
        wrong += got_residual[i - own.first * hidden] != rounded;
      normed[i] = shape_.rounds_sum ? rounded : added;
      squares += std::pow(double{normed[i]}, 2);
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(hidden) + double{kEpsilon});
    for (uint64_t i = 0; i < hidden; ++i) {
      float& number = normed[row * hidden + i];
      number = static_cast<float>(number * factor);
      if (shape_.rounds_normed) number = round_number(shape_.type, number);
      number *= (shape_.has_weight ? weight[i] : 1) + shape_.weight_offset;
    }
  }
  if (shape_.has_output) {
    const std::vector<float> got =
        widen_all(shape_.type, read(output_, (shape_.rows * shape_.step()) * element, wrong));
    for (uint64_t row = 0; row < shape_.rows; ++row) {
      for (uint64_t i = 0; i < shape_.step(); ++i) {
        const float number = got[row * shape_.step() + i], want = i < hidden ? normed[row * hidden + i] : 0;
        // Twice: a normed element may round the other way.
        const double bound = std::abs(want) * (shape_.rounds_normed ? 3 : 1.1) * rounding + 0x1p-24;
        wrong += !(std::abs(number - want) <= bound);
      }
    }
  }
  if (shape_.quantisation != VERBENA_OPS_NOT_QUANTISED) wrong += count_wrong_quantised(normed);
  return wrong;
}

uint64_t NormCall::count_wrong_quantised(const std::vector<float>& normed) const {
  const uint64_t hidden = shape_.hidden, blocks = shape_.blocks();
  const bool is_of_tensor = shape_.quantisation == VERBENA_OPS_FP8_TENSOR;
  const bool is_integer = shape_.quantisation == VERBENA_OPS_INT8_TOKEN;
  const uint64_t block = is_of_blocks(shape_.quantisation) ? kBlock : hidden;
  const double rounding = shape_.type == VERBENA_OPS_FLOAT16 ? 0x1p-11 : 0x1p-8;
  uint64_t wrong = 0;
  const Bytes codes = read(quantised_, shape_.rows * shape_.step(), wrong);
  const Bytes scale_bytes = read(scales_, (is_of_tensor ? 1 : shape_.rows * blocks) * sizeof(float), wrong);
  std::vector<float> scales(scale_bytes.size() / sizeof(float));
  std::memcpy(scales.data(), scale_bytes.data(), scale_bytes.size());
  std::vector<float> values = widen_all(VERBENA_OPS_E4M3, codes);
  for (uint64_t i = 0; is_integer && i < codes.size(); ++i) values[i] = static_cast<int8_t>(codes[i]);
  for (uint64_t row = 0; row < shape_.rows; ++row) {
    const float* const wants = normed.data() + row * hidden;
    for (uint64_t first = 0; first < hidden; first += block) {
      const uint64_t end = std::min(first + block, hidden);
      const double scale = double{scales[is_of_tensor ? 0 : row * blocks + first / block]};
      double largest = 0;
      for (uint64_t i = first; i < end; ++i) largest = std::max(largest, std::abs(double{wants[i]}));
      // The scale is the exact one, but for the rounding of elements, or the next power of two.
      const double exact = std::max(largest / (is_integer ? 127 : 448), 1e-10);
      const double most = shape_.quantisation == VERBENA_OPS_FP8_BLOCK_POWER ? 2 : 1;
      const double tolerance = 4 * rounding;
      if (!is_of_tensor)
        wrong += !(scale >= exact * (1 - tolerance) && scale <= most * exact * (1 + tolerance));
      for (uint64_t i = first; i < end; ++i) {
        const double want = double{wants[i]}, step = is_integer ? scale / 2 : std::abs(want) / 16;
        const double bound = 1.01 * std::max(step, scale * 0x1p-10) + std::abs(want) * tolerance;
        wrong += !(std::abs(values[row * shape_.step() + i] * scale - want) <= bound);
      }
    }
    for (uint64_t i = hidden; i < shape_.step(); ++i) wrong += codes[row * shape_.step() + i] != 0;
  }
  return wrong;
}

}  // namespace verbena::tools::coll
