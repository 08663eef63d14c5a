#include "verbena-coll/options.h"

#include <CLI/CLI.hpp>

#include "common/option_style.h"
#include "verbena-coll/contenders.h"

namespace verbena::tools::coll {

ParsedOptions parse_options(int argc, char** argv) {
  ParsedOptions parsed;
  Options& options = parsed.options;
  RankPlan& plan = options.rank_plan;
  CLI::App app{
      "Checks the collectives of libverbena_ops.so between the GPUs of this host, every element on every "
      "rank, "
      "and measures them, one process for each GPU. A figure is the slope of a CUDA graph's time over the "
      "number of operations in it, each on the result of the one before, of the slowest rank."};
  app.option_defaults()->group("What is measured");
  app.add_option("--ranks,-n", options.ranks, "processes (default one for each GPU)")
      ->check(CLI::Range(2, 16));
  app.add_option(
         "--hosts", plan.hosts,
         "divide the ranks among this number of hosts (by VERBENA_HOSTID), which reach each other by RDMA")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  SizeOptions sizes;
  sizes.sizes = "1K:64M";
  add_size_options(app, sizes);
  app.add_option("--type,-d", plan.types, "bf16, f16, f32, i32, e4m3, or a list")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "f16", "f32", "i32", "e4m3"}))
      ->capture_default_str();
  app.add_option(
         "--operation,-o", plan.operations,
         "all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, a quantised all-reduce "
         "(all_reduce_fp8, _int8, _int6, _int4, _mxfp8, _fp8_int8, _int4_int8), an all-reduce with RMSNorm "
         "(all_reduce_norm, or with quantised rows _norm_fp8 with a scale for each, _norm_fp8_tensor with "
         "one for "
         "all), or a list; of other operations than "
         "all-reduces sizes are of messages")
      ->delimiter(',')
      // All names in one word are more than a line of the manual page holds; the text has them.
      ->type_name("NAME")
      ->check(CLI::IsMember(list_operations()).description(""))
      ->capture_default_str();
  app.add_option("--hidden", plan.hidden, "numbers of a row that is normed; sizes are then of whole rows")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option(
         "--moe", plan.moe_tokens,
         "instead: dispatch and combine of mixture of experts with this number of tokens of each rank, or "
         "a list; rows of --hidden elements, other routing in each call; --soak rounds are checked")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--experts", plan.moe_experts, "of --moe")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--top-k", plan.moe_top_k, "experts of a token, of --moe")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app.add_option("--row-bytes", plan.moe_row_bytes,
                 "of a dispatched row of --moe, a multiple of 16 (default two for each element)")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--scale-bytes", plan.moe_scale_bytes,
                 "of a dispatched row's scales, a multiple of 4 (default none)")
      ->check(CLI::Range(0, 1 << 16));
  app.add_option(
         "--calibrate", options.calibrate,
         "write what was measured into this tuning file (VERBENA_TUNING_FILE), by which the library chooses")
      ->type_name("FILE");
  app.add_option(
         "--delay", plan.delay_us,
         "microseconds that each kernel pauses before it waits for the kernel before, and after it has "
         "let the next one start: a kernel that does not wait gives wrong results then")
      ->check(CLI::Range(0, 1000000));
  app.add_flag("--quick", plan.is_quick, "times in graphs alone: not one by one, nor with a late rank");
  app.add_option(
         "--against", options.against,
         "who is measured beside: nccl (in the same processes), torch, flashinfer, sglang, vllm (each in "
         "processes of its own, with --python), or a list")
      ->delimiter(',')
      ->check(CLI::IsMember({"nccl", "torch", "flashinfer", "sglang", "vllm"}));
  app.add_flag(
      "--check", [&](int64_t) { plan.measures = false; }, "only check the data, measure nothing");
  app.add_flag(
      "--no-check", [&](int64_t) { plan.checks = false; }, "measure without a check before");
  app.add_flag(
      "--chosen", [&](int64_t) { plan.all_shapes = false; },
      "only the way that the library chooses, not all of them");
  app.add_flag("--pdl", plan.pdl, "kernels let the next one begin early (programmatic dependent launch)");
  app.add_option("--soak", plan.soak,
                 "then replay one graph this number of times, with other data each time, all verified");
  app.add_option(
      "--random", plan.random,
      "then make this number of random calls, in tensors of up to the largest of --sizes: operation, "
      "type, size, algorithm, groups, and for each rank alignment, in place, delay, graph, stream; every "
      "element is checked");
  app.add_option("--seed", plan.seed, "of --random: the same calls again")->capture_default_str();
  app.add_option("--repeats,-r", plan.repeats, "samples of each figure")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--chain", plan.chain, "operations of the shorter graph; the longer one has twice as many")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--blocks", plan.blocks, "most blocks of a kernel")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app.add_option("--packets", plan.packet_bytes,
                 "bytes of the workspace for packets (default: the library's)")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--library", plan.library, "libverbena_ops.so (default: beside this tool)");
  app.add_option("--nccl", plan.nccl_library, "NCCL's library")->capture_default_str();
  app.add_option("--python", options.python, "the Python that has torch and what else --against names")
      ->capture_default_str();
  add_timeout_option(app, plan.timeout_s, "limit of the time without a line from any rank");
  add_output_options(app, options.output);
  style_help(app, "verbena-coll");
  // A child of this tool.
  auto* rank = app.add_option("--rank-of", plan.id)->group("");
  app.add_option("--rank", plan.rank)->group("");
  app.add_option("--gpu", plan.gpu)->group("");
  app.add_option("--nccl-id", plan.nccl_id)->group("");
  plan.nccl_library = "libnccl.so.2";
  try {
    app.parse(argc, argv);
    plan.sizes = resolve_sizes(sizes);
    options.own_sizes = sizes.sizes;
    if (rank->count() == 0) check_output_options(options.output);
  } catch (const CLI::ParseError& error) {
    parsed.exit_status = leave_parsing(app, error);
  }
  options.is_rank = rank->count() > 0;
  plan.count_ranks = static_cast<unsigned>(options.ranks);
  plan.against = options.against;
  return parsed;
}

}  // namespace verbena::tools::coll
