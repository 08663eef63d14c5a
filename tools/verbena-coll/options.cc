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
      "Checks every element of the collectives of libverbena_ops.so on every rank, then measures them, with "
      "one process for each GPU of this host. A latency is the slope of a CUDA graph's time over the number "
      "of operations in it, each on the result of the one before, on the slowest rank."};
  app.option_defaults()->group("What is measured");
  app.add_option("--ranks,-n", options.ranks,
                 "processes (default one for each GPU, and two on one GPU; more processes than GPUs share "
                 "them, which needs NVIDIA's MPS)")
      ->check(CLI::Range(2, 16));
  app.add_option(
         "--hosts", plan.hosts,
         "divide the ranks among this number of hosts (by VERBENA_HOSTID), which reach each other by RDMA")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  SizeOptions sizes;
  sizes.sizes = "1K:64M";
  add_size_options(app, sizes);
  app.add_option("--type,-d", plan.types, "element type: bf16, f16, f32, i32, e4m3, or a list")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "f16", "f32", "i32", "e4m3"}))
      ->capture_default_str();
  app.add_option("--operation,-o", plan.operations,
                 "all_reduce, all_gather, reduce_scatter, broadcast, all_to_all; a quantised all-reduce "
                 "(all_reduce_fp8, _int8, _int6, _int4, _mxfp8, _fp8_int8, _int4_int8); an all-reduce with "
                 "RMSNorm (all_reduce_norm; with quantised rows all_reduce_norm_fp8, one scale a row, or "
                 "all_reduce_norm_fp8_tensor, one scale for all); or a list. For all-reduces --sizes are of "
                 "the tensor, for others of one rank's message")
      ->delimiter(',')
      // All names in one word are more than a line of the manual page holds; the text has them.
      ->type_name("NAME")
      ->check(CLI::IsMember(list_operations()).description(""))
      ->capture_default_str();
  app.add_option("--hidden", plan.hidden,
                 "elements of a row, for operations with RMSNorm and for --moe; with RMSNorm --sizes are "
                 "rounded down to whole rows")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--moe", plan.moe_tokens,
                 "measure dispatch and combine of a mixture of experts instead, with this number of tokens a "
                 "rank, or a list; rows have --hidden elements, and each call has other routes. --soak sets "
                 "the number of verified rounds")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--experts", plan.moe_experts, "with --moe: experts of all ranks")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--top-k", plan.moe_top_k, "with --moe: experts of a token")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app.add_option("--row-bytes", plan.moe_row_bytes,
                 "with --moe: bytes of a dispatched row, a multiple of 16 (default two for each element)")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--scale-bytes", plan.moe_scale_bytes,
                 "with --moe: bytes of the scales of a dispatched row, a multiple of 4 (default none)")
      ->check(CLI::Range(0, 1 << 16));
  app.add_option("--calibrate", options.calibrate,
                 "write the measurements to this tuning file (VERBENA_TUNING_FILE), from which the library "
                 "chooses algorithms")
      ->type_name("FILE");
  app.add_option(
         "--delay", plan.delay_us,
         "test of --pdl: microseconds that each kernel pauses before it waits for the kernel before it, and "
         "again after it has let the next kernel start; wrong results show a kernel that does not wait")
      ->check(CLI::Range(0, 1000000));
  app.add_flag("--quick", plan.is_quick,
               "measure in CUDA graphs only: no single calls, and no rank that starts late");
  app.add_option("--against", options.against,
                 "measure these libraries too: nccl (in the same processes), torch, flashinfer, sglang, vllm "
                 "(each in its own processes, with --python), or a list")
      ->delimiter(',')
      ->check(CLI::IsMember({"nccl", "torch", "flashinfer", "sglang", "vllm"}));
  app.add_flag(
      "--check", [&](int64_t) { plan.measures = false; }, "check the data only, measure nothing");
  app.add_flag(
      "--no-check", [&](int64_t) { plan.checks = false; }, "measure without checking the data first");
  app.add_flag(
      "--chosen", [&](int64_t) { plan.all_shapes = false; },
      "measure only the algorithm that the library chooses, not all of them");
  app.add_flag("--pdl", plan.pdl,
               "use programmatic dependent launch: a kernel lets the next one start before it has ended");
  app.add_option(
      "--soak", plan.soak,
      "afterwards replay one graph this number of times, each time with other data, and check every result");
  app.add_option("--random", plan.random,
                 "afterwards make this number of random calls, with tensors of up to the largest of --sizes, "
                 "and check every element; random are the operation, type, size, algorithm and grouping, and "
                 "for each rank the alignment, in place or not, delay, graph and stream");
  app.add_option("--seed", plan.seed, "with --random: the same seed makes the same calls")
      ->capture_default_str();
  app.add_option("--repeats,-r", plan.repeats, "samples of each figure")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--chain", plan.chain,
                 "operations in the shorter of the two graphs; the longer one has twice as many")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--blocks", plan.blocks, "maximum number of blocks of a kernel")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app.add_option("--packets", plan.packet_bytes, "size of the workspace for packets (default: the library's)")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--library", plan.library, "libverbena_ops.so (default: beside this tool)");
  app.add_option("--nccl", plan.nccl_library, "path of NCCL's library")->capture_default_str();
  app.add_option("--python", options.python,
                 "Python interpreter that has torch and the libraries of --against")
      ->capture_default_str();
  add_timeout_option(app, plan.timeout_s, "abort if no rank has reported anything for this time");
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
