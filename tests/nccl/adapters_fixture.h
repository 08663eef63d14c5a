// A typed fixture over the linked tables and the fake core, with distinct addresses for every argument.
#pragma once

#include "nccl/fake_core.h"
#include "nccl/log_capture.h"
#include "nccl/tables.h"
#include "nccl/versions.h"

namespace verbena::nccl::testing {

template <typename V>
class AdaptersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_core() = FakeCore{};
    fake_core().produced = &made_;
    LogCapture::get().take_lines();
    ASSERT_EQ(net_.init(&context_, 0xfeed, 5, &LogCapture::write), abi::kSuccess);
    LogCapture::get().take_lines();
  }

  // The context that this version's listen and connect pass on.
  void* expected_context() { return V::kHasContext ? given_context() : static_cast<void*>(&made_); }
  void* given_context() { return &other_context_; }

  template <typename... Words>
  static Call call(const char* function, Words... words) {
    return {function, {to_word(words)...}};
  }
  static Call last_call() { return fake_core().calls.empty() ? Call{} : fake_core().calls.back(); }

  Caller<V> net_{linked_table<typename V::Table>()};
  void* context_ = nullptr;
  char made_ = 0, other_context_ = 0, comm_ = 0, data_ = 0, mhandle_ = 0, request_ = 0;
  char handle_[abi::kHandleBytes] = {};
};

}  // namespace verbena::nccl::testing
