// Which form each copy takes, by path and length, and what the self-test has measured.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "softverbs/copier/copy_stream.h"

namespace verbena::softverbs::copier {

// Which form each copy takes, by path and length. Before the self-test it is what was measured on H100s with
// driver 580 and CUDA 13.0.
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

  bool stores_words = false;     // whole words to the GPU, up to kMaxWordsBytes, else they are copied
  bool tells_by_stream = false;  // the stream itself says that copies are done, else an event

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

// Measures each form beside a kernel of ours that spins in a context of its own, as the application's kernels
// do, and chooses. Takes some 0.3 s, and little more than a second at most. `report` gets a table, and says
// what was not measured and why. With the context of `device` current, which it still is afterwards.
Ways measure_ways(const Driver& driver, CUcontext context, CUdevice device, std::string& report);

}  // namespace verbena::softverbs::copier
