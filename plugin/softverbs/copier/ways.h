// The table that selects a copy's form by path and length, and the self-test that fills the table.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "softverbs/copier/copy_stream.h"

namespace verbena::softverbs::copier {

// Selects a copy's form by path and length. Before the self-test, the table is based on measurements of H100s
// with driver 580 and CUDA 13.0.
class Ways {
 public:
  static constexpr std::array<uint64_t, 4> kClassBegins = {1, 4096, 32768, 262144};
  static constexpr size_t kClassCount = kClassBegins.size();
  static size_t find_class(uint64_t bytes);

  Form choose(Path path, uint64_t bytes) const {
    return forms_[static_cast<size_t>(path)][find_class(bytes)];
  }
  void set(Path path, size_t length_class, Form form) {
    forms_[static_cast<size_t>(path)][length_class] = form;
  }

  // Whether streams store whole words to the GPU, up to kMaxWordsBytes; otherwise words are copied.
  bool stores_words = false;
  // Whether the stream stores a word when copies are complete; otherwise an event is recorded.
  bool tells_by_stream = false;

 private:
  using Forms = std::array<Form, kClassCount>;
  static constexpr Form kThrough = Form::kThroughHost;
  std::array<Forms, kPathCount> forms_{{
      {Form::kPlain, Form::kPlain, Form::kPlain, Form::kPlain},
      {Form::kRows, Form::kRows, Form::kRows, Form::kPlain},
      {kThrough, kThrough, kThrough, kThrough},
      {kThrough, Form::kPlain, Form::kPlain, Form::kPlain},
  }};
};

// Measures each form while a kernel spins in a separate context, like the application's kernels, and fills
// the table. Takes about 0.3 s, and a little more than 1 s at most. `report` receives the results, and the
// reasons for missing ones. The context of `device` must be current, and stays current.
Ways measure_ways(const Driver& driver, CUcontext context, CUdevice device, std::string& report);

}  // namespace verbena::softverbs::copier
