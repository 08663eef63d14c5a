#include "verbena-bench/coll/options.h"

#include <CLI/CLI.hpp>

#include "verbena-bench/coll/contenders.h"
#include "verbena-bench/shared/options.h"

namespace verbena::tools::coll {

Parsed<CollOptions> parse_options(int argc, const char* const* argv) {
  Parsed<CollOptions> parsed;
  CollOptions& options = parsed.options;
  CollPlan& plan = options.rank_plan;
  CLI::App app{
      "Runs the collectives of libverbena_ops.so with one process for each GPU of this host. First checks "
      "every element of the results on every rank, then measures. A latency is the time per operation in a "
      "CUDA graph on the slowest rank: the tool times a short graph and a long graph, and divides the "
      "difference of the times by the difference of the numbers of operations. Each operation uses the "
      "result of the previous operation."};
  app.option_defaults()->group("What is measured");
  app.add_option("--ranks,-n", options.ranks,
                 "number of processes. Default: one for each GPU, or two if there is only one GPU. If there "
                 "are more processes than GPUs, processes share GPUs; this needs NVIDIA's MPS")
      ->check(CLI::Range(2, 16));
  add_range_option(app, "--hosts", plan.hosts,
                   "number of hosts to emulate. The tool divides the ranks into this number of groups and "
                   "gives each group its own VERBENA_HOSTID. Ranks of different groups use RDMA",
                   1, 16);
  SizeOptions sizes;
  sizes.sizes = "1K:64M";
  add_size_options(app, sizes);
  app.add_option("--type,-d", plan.types, "element type: bf16, f16, f32, i32, e4m3, or a list")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "f16", "f32", "i32", "e4m3"}))
      ->capture_default_str();
  app.add_option(
         "--operation,-o", plan.operations,
         "one of the following, or a list. The five collectives: all_reduce, all_gather, reduce_scatter, "
         "broadcast, all_to_all. The five collectives, encoded without loss between hosts: "
         "all_reduce_lossless, all_gather_lossless, ... Quantised all-reduces: all_reduce_fp8, _int8, _int6, "
         "_int4, _mxfp8, _fp8_int8, _int4_int8. All-reduces with RMSNorm: all_reduce_norm; "
         "all_reduce_norm_fp8 (quantised rows, one scale per row); all_reduce_norm_fp8_tensor (quantised "
         "rows, one scale per tensor); moe_finalize_all_reduce_norm (the input is computed from the outputs "
         "of 8 experts per token and of a shared expert). For all-reduces, --sizes is the size of the "
         "tensor; for all other operations, the size of one rank's message")
      ->delimiter(',')
      // All names in one word are more than a line of the manual page holds; the text has them.
      ->type_name("NAME")
      ->check(CLI::IsMember(list_operations()).description(""))
      ->capture_default_str();
  add_range_option(app, "--hidden", plan.hidden,
                   "number of elements per row, for operations with RMSNorm and for --moe. With RMSNorm, "
                   "--sizes are rounded down to whole rows",
                   1, 1 << 20);
  app.add_option("--moe", plan.moe_tokens,
                 "measure only the dispatch and the combine of a mixture of experts. The value is the number "
                 "of tokens per rank, or a list of such numbers. --hidden is the length of a row. Each call "
                 "has different routes. --soak sets the number of verified rounds")
      ->delimiter(',')
      ->check(CLI::Range(1, 16384));
  app.add_option("--max-tokens", plan.moe_max_tokens,
                 "with --moe: max tokens per rank of the exchange, if this is more than the tokens of a call")
      ->check(CLI::Range(1, 16384));
  add_range_option(app, "--experts", plan.moe_experts, "with --moe: total number of experts on all ranks", 1,
                   4096);
  add_range_option(app, "--top-k", plan.moe_top_k, "with --moe: number of experts per token", 1, 32);
  app.add_option("--row-bytes", plan.moe_row_bytes,
                 "with --moe: bytes of each dispatched row, a multiple of 16; default: two bytes per element")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--scale-bytes", plan.moe_scale_bytes,
                 "with --moe: bytes of scales for each dispatched row, a multiple of 4; default: no scales")
      ->check(CLI::Range(0, 1 << 16));
  app.add_option("--grouping", plan.moe_grouping,
                 "with --moe: layout of the dispatched rows. rank: grouped by source rank; expert: grouped "
                 "by expert; ragged: grouped by expert, without gaps between the groups. With expert and "
                 "ragged, the combine takes one row from each expert instead of one row from each rank")
      ->check(CLI::IsMember({"rank", "expert", "ragged"}))
      ->capture_default_str();
  add_range_option(
      app, "--alignment", plan.moe_alignment,
      "with --grouping ragged: each group begins at a row number that is a multiple of this value", 1, 1024);
  app.add_flag(
      "--windows", plan.moe_windows,
      "with --moe and --grouping rank: an exchange in which ranks access rows in each other's windows");
  app.add_option("--calibrate", options.calibrate,
                 "write the measurements to this tuning file. If VERBENA_TUNING_FILE is set to the path of "
                 "the file, the library uses the file to choose algorithms. With --hosts, the tool writes "
                 "only the measurements of bf16, for teams on as many hosts as --hosts")
      ->type_name("FILE");
  app.add_option("--delay", plan.delay_us,
                 "a test of --pdl: each kernel pauses for this number of microseconds before it waits for "
                 "the previous kernel, and again after it has let the next kernel start. If a kernel does "
                 "not wait correctly, the pauses make its results wrong")
      ->check(CLI::Range(0, 1000000));
  app.add_flag(
      "--quick", plan.is_quick,
      "measure in CUDA graphs only. Do not measure single calls, or runs in which one rank starts late");
  app.add_option("--against", options.against,
                 "also measure these libraries: nccl (in the same processes); torch, flashinfer, sglang, "
                 "vllm (in separate processes, with --python); or a list")
      ->delimiter(',')
      ->check(CLI::IsMember({"nccl", "torch", "flashinfer", "sglang", "vllm"}));
  app.add_flag(
      "--no-check", [&](int64_t) { plan.checks = false; }, "do not check the data before the measurement");
  app.add_flag(
      "--chosen", [&](int64_t) { plan.all_shapes = false; },
      "measure only the algorithm that the library chooses (default: all algorithms)");
  app.add_flag("--pdl", plan.pdl,
               "use programmatic dependent launch: each kernel lets the next kernel start before the first "
               "kernel has ended");
  app.add_option("--soak", plan.soak,
                 "after the measurement, replay one graph this number of times with changing data, and check "
                 "every result");
  app.add_option("--random", plan.random,
                 "after the measurement, make this number of random calls and check every element. Some "
                 "calls include RMSNorm. The largest of --sizes limits the tensors. Operation, type, "
                 "size, algorithm and grouping are the same on all ranks. Alignment, in-place use, delay, "
                 "graph and stream differ between ranks. Then make dispatches and combines of a mixture of "
                 "experts, one for every eight random calls, with random shapes, layouts and routes");
  app.add_option("--seed", plan.seed, "with --random: seed of the random calls")->capture_default_str();
  add_range_option(
      app, "--chain", plan.chain,
      "number of operations in the shorter of the two graphs. The longer graph has twice as many "
      "operations",
      1, 1000);
  add_range_option(app, "--blocks", plan.blocks, "maximum number of blocks of a kernel", 1, 512);
  app.add_option("--packets", plan.packet_bytes,
                 "size of the workspace for packets (default: the library chooses)")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--library", plan.library, "libverbena_ops.so (default: beside this tool)");
  app.add_option("--nccl", plan.nccl_library, "path of NCCL's library")->capture_default_str();
  app.add_option("--python", options.python,
                 "Python interpreter that has torch and the libraries that --against names")
      ->capture_default_str();
  bool checks_only = false;
  bench::add_bench_options(app, {checks_only, plan.repeats, plan.timeout_s, options.output});
  style_help(app, "verbena-bench coll");
  // Of a process that this tool starts: rank, GPU, unique id, number of ranks, NCCL's unique id.
  std::vector<std::string> identity;
  app.add_option("--rank-of", identity)->delimiter(',')->group("");
  plan.nccl_library = "libnccl.so.2";
  parsed.exit_status = parse_arguments(app, argc, argv, [&] {
    plan.sizes = resolve_sizes(sizes);
    options.is_rank = !identity.empty();
    if (!options.is_rank) check_output_options(options.output);
  });
  plan.measures = !checks_only;
  plan.against = options.against;
  if (options.is_rank) {
    plan.rank = static_cast<unsigned>(std::stoul(identity.at(0)));
    plan.gpu = std::stoi(identity.at(1));
    plan.id = identity.at(2);
    plan.count_ranks = static_cast<unsigned>(std::stoul(identity.at(3)));
    if (identity.size() > 4) plan.nccl_id = identity[4];
  }
  return parsed;
}

}  // namespace verbena::tools::coll
