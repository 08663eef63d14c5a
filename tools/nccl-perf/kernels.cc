#include "nccl-perf/kernels.h"

#include <algorithm>
#include <string>

#include "common/error.h"
#include "nccl-perf/element.h"

namespace verbena::tools::nccl {

// Both kernels walk their elements with a stride of the whole grid: %rd5 is the index, %rd6 the stride.
const char kKernelText[] = R"ptx(.version 6.3
.target sm_75
.address_size 64

.visible .entry fill_elements(.param .u64 data, .param .u64 count, .param .u32 seed)
{
  .reg .pred %p<2>;
  .reg .b32 %r<32>;
  .reg .b64 %rd<16>;
  ld.param.u64 %rd1, [data];
  cvta.to.global.u64 %rd2, %rd1;
  ld.param.u64 %rd3, [count];
  ld.param.u32 %r1, [seed];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mov.u32 %r5, %nctaid.x;
  mul.wide.u32 %rd4, %r2, %r3;
  cvt.u64.u32 %rd5, %r4;
  add.u64 %rd5, %rd5, %rd4;
  mul.wide.u32 %rd6, %r5, %r3;
fill_loop:
  setp.ge.u64 %p1, %rd5, %rd3;
  @%p1 bra fill_done;
  cvt.u32.u64 %r20, %rd5;
  mad.lo.u32 %r20, %r20, 0x9E3779B1, %r1;
  shr.u32 %r22, %r20, 15;
  xor.b32 %r20, %r20, %r22;
  mul.lo.u32 %r20, %r20, 0x2C1B3C6D;
  shr.u32 %r22, %r20, 12;
  xor.b32 %r20, %r20, %r22;
  mul.lo.u32 %r20, %r20, 0x297A2D39;
  shr.u32 %r22, %r20, 15;
  xor.b32 %r20, %r20, %r22;
  shl.b64 %rd7, %rd5, 2;
  add.u64 %rd7, %rd7, %rd2;
  st.global.u32 [%rd7], %r20;
  add.u64 %rd5, %rd5, %rd6;
  bra.uni fill_loop;
fill_done:
  ret;
}

// The sum over rank_count ranks, whose seeds are rank_step apart; differences are counted in %rd8.
.visible .entry check_elements(.param .u64 data, .param .u64 count, .param .u32 base_index, .param .u32 seed,
                               .param .u32 rank_count, .param .u32 rank_step, .param .u64 wrong)
{
  .reg .pred %p<4>;
  .reg .b32 %r<32>;
  .reg .b64 %rd<16>;
  ld.param.u64 %rd1, [data];
  cvta.to.global.u64 %rd2, %rd1;
  ld.param.u64 %rd3, [count];
  ld.param.u32 %r1, [seed];
  ld.param.u32 %r6, [base_index];
  ld.param.u32 %r7, [rank_count];
  ld.param.u32 %r8, [rank_step];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mov.u32 %r5, %nctaid.x;
  mul.wide.u32 %rd4, %r2, %r3;
  cvt.u64.u32 %rd5, %r4;
  add.u64 %rd5, %rd5, %rd4;
  mul.wide.u32 %rd6, %r5, %r3;
  mov.u64 %rd8, 0;
check_loop:
  setp.ge.u64 %p1, %rd5, %rd3;
  @%p1 bra check_done;
  cvt.u32.u64 %r9, %rd5;
  add.u32 %r9, %r9, %r6;
  mul.lo.u32 %r9, %r9, 0x9E3779B1;
  mov.u32 %r10, 0;
  mov.u32 %r11, 0;
  mov.u32 %r12, %r1;
rank_loop:
  add.u32 %r20, %r9, %r12;
  shr.u32 %r22, %r20, 15;
  xor.b32 %r20, %r20, %r22;
  mul.lo.u32 %r20, %r20, 0x2C1B3C6D;
  shr.u32 %r22, %r20, 12;
  xor.b32 %r20, %r20, %r22;
  mul.lo.u32 %r20, %r20, 0x297A2D39;
  shr.u32 %r22, %r20, 15;
  xor.b32 %r20, %r20, %r22;
  add.u32 %r10, %r10, %r20;
  add.u32 %r12, %r12, %r8;
  add.u32 %r11, %r11, 1;
  setp.lt.u32 %p2, %r11, %r7;
  @%p2 bra rank_loop;
  shl.b64 %rd7, %rd5, 2;
  add.u64 %rd7, %rd7, %rd2;
  ld.volatile.global.u32 %r13, [%rd7];
  setp.eq.u32 %p3, %r13, %r10;
  @%p3 bra next_element;
  add.u64 %rd8, %rd8, 1;
next_element:
  add.u64 %rd5, %rd5, %rd6;
  bra.uni check_loop;
check_done:
  setp.eq.u64 %p1, %rd8, 0;
  @%p1 bra check_return;
  ld.param.u64 %rd9, [wrong];
  cvta.to.global.u64 %rd9, %rd9;
  red.global.add.u64 [%rd9], %rd8;
check_return:
  ret;
}
)ptx";

namespace {

constexpr unsigned kBlockThreads = 256;
constexpr uint64_t kMaxBlocks = 1024;

CudaModule compile(const CudaDriver& driver) {
  char log[4096] = "";
  int options[] = {kCudaJitErrorLog, kCudaJitErrorLogBytes};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CudaModule module = nullptr;
  const CudaStatus status = driver.load_module(&module, kKernelText, 2, options, values);
  if (status != kCudaSuccess && log[0] != '\0')
    throw ToolError(std::string("compiling the check kernels: ") + log);
  driver.check(status, "cuModuleLoadDataEx");
  return module;
}

}  // namespace

Kernels::Kernels(const CudaDriver& driver) : driver_(driver) {
  const CudaModule module = compile(driver);
  driver.check(driver.find_function(&fill_, module, "fill_elements"), "cuModuleGetFunction");
  driver.check(driver.find_function(&check_, module, "check_elements"), "cuModuleGetFunction");
}

void Kernels::launch(CudaFunction function, uint64_t count, void** parameters, CudaStream stream) const {
  const auto blocks =
      static_cast<unsigned>(std::clamp<uint64_t>((count + kBlockThreads - 1) / kBlockThreads, 1, kMaxBlocks));
  driver_.check(driver_.launch(function, blocks, 1, 1, kBlockThreads, 1, 1, 0, stream, parameters, nullptr),
                "cuLaunchKernel");
}

void Kernels::fill(CudaAddress data, uint64_t count, uint32_t rank, uint32_t salt, CudaStream stream) const {
  uint32_t seed = compute_seed(rank, salt);
  void* parameters[] = {&data, &count, &seed};
  launch(fill_, count, parameters, stream);
}

void Kernels::check(CudaAddress data, const Expectation& expected, uint32_t salt, CudaAddress wrong,
                    CudaStream stream) const {
  CudaAddress part = data + expected.offset * kElementBytes;
  uint64_t count = expected.count;
  uint32_t base_index = expected.base_index;
  uint32_t seed = compute_seed(expected.first_rank, salt);
  uint32_t rank_count = expected.rank_count;
  uint32_t rank_step = kRankStep;
  void* parameters[] = {&part, &count, &base_index, &seed, &rank_count, &rank_step, &wrong};
  launch(check_, count, parameters, stream);
}

}  // namespace verbena::tools::nccl
