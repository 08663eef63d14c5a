#include "softverbs/copier/copy_stream.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace verbena::softverbs::copier {

bool CopyStream::open(std::string& why) {
  int least = 0, greatest = 0;
  driver_.cuCtxGetStreamPriorityRange(&least, &greatest);
  const CUresult result = driver_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, greatest);
  if (result != CUDA_SUCCESS) why = driver_.explain("cuStreamCreateWithPriority", result);
  return result == CUDA_SUCCESS;
}

CUresult CopyStream::copy_rows(CUdeviceptr to, CUdeviceptr from, uint64_t width, uint64_t rows) {
  CUDA_MEMCPY2D shape{};
  shape.srcMemoryType = shape.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  shape.srcDevice = from;
  shape.dstDevice = to;
  shape.srcPitch = shape.dstPitch = shape.WidthInBytes = width;
  shape.Height = rows;
  return driver_.cuMemcpy2DAsync_v2(&shape, stream_);
}

CUresult CopyStream::copy(Form form, CUdeviceptr to, CUdeviceptr from, uint64_t bytes) {
  if (form == Form::kWords) {
    std::array<WordAt, kMaxWords> words;
    const size_t count = bytes / kWord;
    for (size_t i = 0; i < count; ++i) {
      words[i].address = to + i * kWord;
      memcpy(&words[i].value, reinterpret_cast<const uint8_t*>(from) + i * kWord, kWord);
    }
    return store(std::span(words).first(count));
  }
  return form == Form::kRows ? copy_as_rows(to, from, bytes)
                             : driver_.cuMemcpyAsync(to, from, bytes, stream_);
}

// Aligned words of the target are written as a whole, because a thread may poll them: rows consist of whole
// words, except for the bytes before the first and after the last word. No byte is copied twice.
CUresult CopyStream::copy_as_rows(CUdeviceptr to, CUdeviceptr from, uint64_t bytes) {
  uint64_t before = std::min<uint64_t>((kWord - to % kWord) % kWord, bytes);
  uint64_t words = (bytes - before) / kWord * kWord, behind = bytes - before - words;
  // A single byte cannot be copied as rows, but together with a neighbouring word it forms three rows of
  // three bytes. This is safe, because words of a message with an odd length are not polled.
  for (uint64_t* const end : {&before, &behind}) {
    if (*end != 1 || words == 0) continue;
    *end += kWord;
    words -= kWord;
  }
  const auto get_unit = [](uint64_t end) { return end > kWord ? uint64_t{3} : uint64_t{1}; };
  CUresult result = CUDA_SUCCESS;
  if (before != 0) result = copy_in_units(to, from, before, get_unit(before));
  if (words != 0 && result == CUDA_SUCCESS) result = copy_in_units(to + before, from + before, words, kWord);
  if (behind != 0 && result == CUDA_SUCCESS)
    result = copy_in_units(to + bytes - behind, from + bytes - behind, behind, get_unit(behind));
  return result;
}

// An even number of units is copied as two rows, an odd number as three rows of one unit each. A single unit
// cannot be copied as rows.
CUresult CopyStream::copy_in_units(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, uint64_t unit) {
  constexpr uint64_t kOddRows = 3;
  const uint64_t units = bytes / unit, odd = units % 2 == 0 ? 0 : kOddRows;
  if (units == 1) return driver_.cuMemcpyAsync(to, from, bytes, stream_);
  if (units > odd) {
    const CUresult result = copy_rows(to, from, (units - odd) / 2 * unit, 2);
    if (result != CUDA_SUCCESS || odd == 0) return result;
  }
  const uint64_t rest = (units - odd) * unit;
  return copy_rows(to + rest, from + rest, unit, odd);
}

// A hint requests the copy engines.
CUresult CopyStream::copy_batch(std::vector<CUdeviceptr>& to, std::vector<CUdeviceptr>& from,
                                std::vector<size_t>& bytes) {
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  size_t first_index = 0, failed_index = 0;
  return driver_.cuMemcpyBatchAsync(to.data(), from.data(), bytes.data(), bytes.size(), &attributes,
                                    &first_index, 1, &failed_index, stream_);
}

CUresult CopyStream::store(std::span<const WordAt> words) {
  std::array<CUstreamBatchMemOpParams, kMaxWords> stores{};
  unsigned count = 0;
  for (const WordAt& word : words)
    stores[count++] = {CU_STREAM_MEM_OP_WRITE_VALUE_64, word.address, word.value, 0, 0, 0};
  const CUresult result = driver_.cuStreamBatchMemOp_v2(stream_, count, stores.data(), 0);
  has_stored_ |= result == CUDA_SUCCESS;
  has_refused_ |= !has_stored_;
  return result;
}

}  // namespace verbena::softverbs::copier
