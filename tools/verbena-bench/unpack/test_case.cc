#include "verbena-bench/unpack/test_case.h"

#include "common/size.h"

namespace verbena::tools::unpack {

std::string PageLengths::describe() const {
  switch (kind) {
    case Kind::kMixed:
      return "mixed";
    case Kind::kRagged:
      return "ragged";
    case Kind::kFixed:
      break;
  }
  return format_size(fixed_bytes);
}

uint32_t PageLengths::largest_bytes() const {
  switch (kind) {
    case Kind::kMixed:
      return 65536;
    case Kind::kRagged:
      return 8191;
    case Kind::kFixed:
      break;
  }
  return fixed_bytes;
}

std::string TestCase::describe() const {
  return std::to_string(blocks) + "x" + std::to_string(threads) + " " + pages.describe() + "/" +
         format_size(slice_bytes) + " +" + std::to_string(source_align) + "/+" +
         std::to_string(destination_align) + " by " + std::to_string(at_once) +
         (bounce == BouncePlace::kHost ? " host" : " gpu");
}

std::vector<TestCase> list_cases(const Sweep& sweep) {
  std::vector<TestCase> cases{TestCase{}};
  const auto multiply = [&cases](const auto& values, auto member) {
    std::vector<TestCase> more;
    for (const auto& value : values) {
      for (TestCase next : cases) {
        next.*member = value;
        more.push_back(next);
      }
    }
    cases = std::move(more);
  };
  // The last list varies slowest.
  multiply(sweep.destination_aligns, &TestCase::destination_align);
  multiply(sweep.source_aligns, &TestCase::source_align);
  multiply(sweep.pages, &TestCase::pages);
  multiply(sweep.slices_bytes, &TestCase::slice_bytes);
  multiply(sweep.slots, &TestCase::slots);
  multiply(sweep.at_once, &TestCase::at_once);
  multiply(sweep.threads, &TestCase::threads);
  multiply(sweep.blocks, &TestCase::blocks);
  multiply(sweep.bounces, &TestCase::bounce);
  return cases;
}

std::vector<TestCase> list_target_cases(uint32_t all_blocks) {
  using Kind = PageLengths::Kind;
  std::vector<TestCase> cases;
  const auto add = [&cases](const Sweep& sweep) {
    for (const TestCase& found : list_cases(sweep)) {
      bool is_new = true;
      for (const TestCase& known : cases) is_new = is_new && !(known == found);
      if (is_new) cases.push_back(found);
    }
  };
  Sweep base;
  base.blocks = {8, all_blocks};
  add(base);
  Sweep together = base;
  together.at_once = {16};
  add(together);
  Sweep long_messages = base;
  long_messages.slices_bytes = {1 << 20, 4 << 20};
  long_messages.slots = {4};
  add(long_messages);
  Sweep pages = base;
  pages.pages = {{Kind::kFixed, 2048}, {Kind::kFixed, 16384}, {Kind::kFixed, 65536}, {Kind::kMixed, 0}};
  add(pages);
  Sweep shifted_source = base;
  shifted_source.source_aligns = {1, 4, 8};
  add(shifted_source);
  Sweep shifted_destination = base;
  shifted_destination.destination_aligns = {1, 4, 8};
  add(shifted_destination);
  Sweep both = base;
  both.source_aligns = {3};
  both.destination_aligns = {3, 10};
  add(both);
  Sweep threads = base;
  threads.threads = {256, 640};
  add(threads);
  Sweep host = base;
  host.bounces = {BouncePlace::kHost};
  host.blocks = {1, 8, all_blocks};
  add(host);
  Sweep small = base;
  small.slices_bytes = {4096, 65536, 131072};
  add(small);
  return cases;
}

}  // namespace verbena::tools::unpack
