// The kernels of libverbena_ops.so, on the emulated machine of tests/device/emulator.
#include "ops/fake_kernels.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

#include "device/emulator/world.h"
#include "device/ops/run_fused.cuh"
#include "device/ops/run_moe.cuh"

namespace verbena {
namespace {

constexpr uint32_t kPatience_s = 60;

using Kernels = std::map<std::string, Kernel>;

void run_grid(uint32_t gpu, const GridShape& grid, const std::function<void()>& body) {
  static std::atomic<uint64_t> seed{1};
  emulator::World::Limits limits;
  limits.outside_patience_s = kPatience_s;
  limits.steps = ~uint64_t{0};
  emulator::World world(seed++, limits);
  world.add_grid(gpu, grid.blocks, grid.threads, body, grid.cluster);
  const std::string failure = world.run();
  if (failure.empty()) return;
  std::fprintf(stderr, "the emulated GPU: %s\n", failure.c_str());
  std::abort();
}

template <typename Launch, void (*kBody)(const Launch&)>
Kernel make() {
  return {sizeof(Launch), [](uint32_t gpu, const GridShape& grid, const void* launch) {
            run_grid(gpu, grid, [=] { kBody(*static_cast<const Launch*>(launch)); });
          }};
}
template <typename Way, ops::Content kContent, typename Reduce>
Kernel make_call() {
  return make<ops::CallLaunch, &ops::run_call<Way, kContent, Reduce>>();
}
template <int kRanks>
void add_known(Kernels& kernels) {
  using ops::Content;
  const std::string of = "_of_" + std::to_string(kRanks);
  kernels["verbena_ops_packets_exchange" + of] =
      make_call<ops::ByPackets<kRanks>, Content::kExchanges, device::ReduceFloats>();
  kernels["verbena_ops_chunks_exchange" + of] =
      make_call<ops::ByChunks<kRanks>, Content::kExchanges, device::ReduceFloats>();
  kernels["verbena_ops_chunks_all_reduce" + of] =
      make_call<ops::ByChunks<kRanks>, Content::kAllReduces, device::ReduceFloats>();
}
template <int kRanks, typename T>
void add_vectors(Kernels& kernels, const char* type) {
  const std::string of = "_of_" + std::to_string(kRanks) + "_" + type;
  kernels["verbena_ops_one_shot" + of] =
      make<ops::CallLaunch, &ops::run_vectors<device::OneShot<>, kRanks, T>>();
  kernels["verbena_ops_two_shot" + of] =
      make<ops::CallLaunch, &ops::run_vectors<device::TwoShot<>, kRanks, T>>();
}
template <typename Way>
void add_coded_way(Kernels& kernels, const std::string& name) {
  kernels["verbena_ops_coded_" + name] = make_call<Way, ops::Content::kAllReduces, device::ReduceAny>();
}
template <typename Addends, typename Sums>
void add_coded(Kernels& kernels, const std::string& name) {
  add_coded_way<ops::ByCodedTwoShots<Addends, Sums, device::RoundToNearest>>(kernels, "two_shot_" + name);
  add_coded_way<ops::ByCodedTwoShots<Addends, Sums, device::RoundStochastically>>(
      kernels, "two_shot_" + name + "_stochastic");
}
template <typename Codec>
void add_coded_single(Kernels& kernels, const std::string& name) {
  add_coded_way<ops::ByCodedOneShot<Codec, device::RoundToNearest>>(kernels, "one_shot_" + name);
  add_coded_way<ops::ByCodedOneShot<Codec, device::RoundStochastically>>(kernels,
                                                                         "one_shot_" + name + "_stochastic");
  add_coded_way<ops::ByCodedHostSums<Codec, device::RoundToNearest>>(kernels, "across_hosts_" + name);
  add_coded_way<ops::ByCodedHostSums<Codec, device::RoundStochastically>>(
      kernels, "across_hosts_" + name + "_stochastic");
}
template <int kRanks, typename T, bool kIsSeveral, typename LaunchOf>
void add_norms(Kernels& kernels, const std::string& name) {
  kernels["verbena_ops_" + name + "_1"] =
      make<LaunchOf, &ops::run_all_reduce_norm<kRanks, T, 1, kIsSeveral, LaunchOf>>();
  kernels["verbena_ops_" + name + "_2"] =
      make<LaunchOf, &ops::run_all_reduce_norm<kRanks, T, 2, kIsSeveral, LaunchOf>>();
}
template <int kRanks, bool kIsSeveral>
void add_norms_of(Kernels& kernels, const std::string& of) {
  using ops::NormLaunch, ops::FinalizeLaunch, device::Half, device::Bfloat16;
  add_norms<kRanks, Half, kIsSeveral, NormLaunch>(kernels, "all_reduce_norm" + of + "_float16");
  add_norms<kRanks, Bfloat16, kIsSeveral, NormLaunch>(kernels, "all_reduce_norm" + of + "_bfloat16");
  add_norms<kRanks, Half, kIsSeveral, FinalizeLaunch>(kernels, "finalize_norm" + of + "_float16");
  add_norms<kRanks, Bfloat16, kIsSeveral, FinalizeLaunch>(kernels, "finalize_norm" + of + "_bfloat16");
}
template <int kRanks>
void add_of(Kernels& kernels) {
  const std::string of = kRanks == 0 ? "_of_any" : "_of_" + std::to_string(kRanks);
  add_norms_of<kRanks, false>(kernels, of);
  if constexpr (kRanks == 2) add_norms_of<2, true>(kernels, of + "_several");
  if constexpr (kRanks != 0) {
    add_vectors<kRanks, float>(kernels, "float32");
    add_vectors<kRanks, device::Half>(kernels, "float16");
    add_vectors<kRanks, device::Bfloat16>(kernels, "bfloat16");
  }
}
template <typename MoeLaunch, bool kIsGrouped, device::MoeFlow kFlow>
void add_dispatch(Kernels& kernels, const std::string& name, ops::MoeFamily family) {
  using device::MoeRowCast, ops::run_moe_dispatch, ops::mangle_moe_kernel;
  kernels[mangle_moe_kernel(name, family)] =
      make<MoeLaunch, &run_moe_dispatch<device::MoeRowBytes, kIsGrouped, kFlow, MoeLaunch>>();
  kernels[mangle_moe_kernel(name + "_float16", family)] =
      make<MoeLaunch, &run_moe_dispatch<MoeRowCast<device::Half>, kIsGrouped, kFlow, MoeLaunch>>();
  kernels[mangle_moe_kernel(name + "_bfloat16", family)] =
      make<MoeLaunch, &run_moe_dispatch<MoeRowCast<device::Bfloat16>, kIsGrouped, kFlow, MoeLaunch>>();
}
template <typename MoeLaunch, device::MoeOrder kOrder, device::MoeFlow kFlow>
void add_combine(Kernels& kernels, const std::string& name, ops::MoeFamily family) {
  using ops::run_moe_combine, ops::mangle_moe_kernel;
  kernels[mangle_moe_kernel(name + "_float16", family)] =
      make<MoeLaunch, &run_moe_combine<device::Half, kOrder, kFlow, MoeLaunch>>();
  kernels[mangle_moe_kernel(name + "_bfloat16", family)] =
      make<MoeLaunch, &run_moe_combine<device::Bfloat16, kOrder, kFlow, MoeLaunch>>();
}
template <typename DispatchLaunch, typename CombineLaunch, device::MoeFlow kFlow>
void add_moe(Kernels& kernels, ops::MoeFamily family) {
  using device::MoeOrder;
  add_dispatch<DispatchLaunch, false, kFlow>(kernels, "dispatch", family);
  add_dispatch<DispatchLaunch, true, kFlow>(kernels, "dispatch_grouped", family);
  add_combine<CombineLaunch, MoeOrder::kRows, kFlow>(kernels, "combine_rows", family);
  add_combine<CombineLaunch, MoeOrder::kReduced, kFlow>(kernels, "combine_reduced", family);
  if constexpr (std::is_same_v<CombineLaunch, ops::MoeCombineLaunch>)
    add_combine<CombineLaunch, MoeOrder::kExact, kFlow>(kernels, "combine_exact", family);
}
const Kernels& list_kernels() {
  using ops::GroupLaunch, ops::NormLaunch;
  static const Kernels all = [] {
    Kernels kernels = {
        {"verbena_ops_packets", make<GroupLaunch, &ops::run_calls<ops::ByPackets<0>>>()},
        {"verbena_ops_chunks", make<GroupLaunch, &ops::run_calls<ops::ByChunks<0>>>()},
        {"verbena_ops_across_hosts", make<GroupLaunch, &ops::run_calls<ops::AcrossHostsByChunks>>()},
        {"verbena_ops_across_hosts_lossless", make<GroupLaunch, &ops::run_calls<ops::AcrossHostsLossless>>()},
        {"verbena_ops_across_hosts_all_reduce",
         make_call<ops::AcrossHostsByChunks, ops::Content::kAllReduces, device::ReduceFloats>()},
        {"verbena_ops_across_hosts_exchange",
         make_call<ops::AcrossHostsByChunks, ops::Content::kExchanges, device::ReduceFloats>()},
        {"verbena_ops_note", make<ops::CompareLaunch, &ops::run_note>()},
        {"verbena_ops_compare", make<ops::CompareLaunch, &ops::run_compare>()},
        {"verbena_ops_norm", make<NormLaunch, &ops::run_norm>()},
        {"verbena_ops_finalize_float16", make<ops::FinalizeLaunch, &ops::run_finalize<device::Half>>()},
        {"verbena_ops_finalize_bfloat16", make<ops::FinalizeLaunch, &ops::run_finalize<device::Bfloat16>>()},
        {"verbena_ops_sharded_norm_packets", make<NormLaunch, &ops::run_sharded_norm<device::OneShot<>>>()},
        {"verbena_ops_sharded_norm_chunks", make<NormLaunch, &ops::run_sharded_norm<device::Bulk<>>>()},
    };
    using ops::MoeFamily, ops::MoeDispatchLaunch, ops::MoeCombineLaunch, device::MoeFlow;
    add_moe<MoeDispatchLaunch, MoeCombineLaunch, MoeFlow::kSendFirst>(kernels, MoeFamily::kOneHost);
    add_moe<MoeDispatchLaunch, MoeCombineLaunch, MoeFlow::kInTurn>(kernels, MoeFamily::kInTurn);
    add_dispatch<MoeDispatchLaunch, false, MoeFlow::kInWindows>(kernels, "dispatch", MoeFamily::kInWindows);
    add_combine<MoeCombineLaunch, device::MoeOrder::kRows, MoeFlow::kInWindows>(kernels, "combine_rows",
                                                                                MoeFamily::kInWindows);
    add_moe<ops::MoeFarDispatchLaunch, ops::MoeFarCombineLaunch, MoeFlow::kSendFirst>(kernels,
                                                                                      MoeFamily::kFar);
    add_known<2>(kernels);
    add_known<4>(kernels);
    add_of<2>(kernels);
    add_of<4>(kernels);
    add_of<8>(kernels);
    add_of<0>(kernels);
    add_coded<device::Float8, device::Float8>(kernels, "float8");
    add_coded<device::Int8, device::Int8>(kernels, "int8");
    add_coded<device::Int6, device::Int6>(kernels, "int6");
    add_coded<device::Int4, device::Int4>(kernels, "int4");
    add_coded<device::MxFloat8, device::MxFloat8>(kernels, "mx_float8");
    add_coded<device::Float8, device::Int8>(kernels, "float8_int8");
    add_coded<device::Int4, device::Int8>(kernels, "int4_int8");
    add_coded_single<device::Float8>(kernels, "float8");
    add_coded_single<device::Int8>(kernels, "int8");
    add_coded_single<device::Int6>(kernels, "int6");
    add_coded_single<device::Int4>(kernels, "int4");
    add_coded_single<device::MxFloat8>(kernels, "mx_float8");
    return kernels;
  }();
  return all;
}

}  // namespace

const Kernel* find_kernel(const std::string& name) {
  const auto found = list_kernels().find(name);
  return found == list_kernels().end() ? nullptr : &found->second;
}

}  // namespace verbena
