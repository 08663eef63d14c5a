#include "verbena-bench/unpack/options.h"

#include <algorithm>
#include <numeric>

#include "common/self_path.h"
#include "common/size.h"
#include "verbena-bench/shared/options.h"
#include "verbena/unpack_abi.h"

namespace verbena::tools::unpack {
namespace {

struct RawOptions {
  std::vector<std::string> pages{"4K"};
  SizeOptions sizes{""};
  std::vector<std::string> source_aligns{"0"};
  std::vector<std::string> destination_aligns{"0"};
  std::vector<std::string> bounces{"gpu"};
  std::vector<std::string> movers;
  std::string footprint = "256M";
  std::string volume = "1G";
  bool check = false;
  uint64_t messages = 0;
};

void add_sweep_options(CLI::App& app, UnpackOptions& options, RawOptions& raw) {
  Sweep& sweep = options.sweep;
  app.option_defaults()
      ->group("What is moved (if an option has a list, the tool measures every combination)")
      ->delimiter(',');
  app.add_option("--page", raw.pages,
                 "bytes of a bounce page. mixed: pages of 2k to 64k; ragged: pages of 0 to 8191 bytes")
      ->capture_default_str();
  app.add_option("--src-align", raw.source_aligns,
                 "alignment of bounce pages: the address of each page modulo 16, from 0 to 15, or all")
      ->capture_default_str();
  app.add_option("--dst-align", raw.destination_aligns,
                 "alignment of messages: the address of each message modulo 16, from 0 to 15, or all")
      ->capture_default_str();
  add_range_option(app, "--slots", sweep.slots, "number of messages in the queue of a connection", 1,
                   kUnpackQueueDepthSlots);
  add_range_option(app, "--at-once", sweep.at_once,
                   "maximum number of complete messages that one call of the unpack function takes", 1,
                   kUnpackQueueDepthSlots);
  add_range_option(app, "--blocks", sweep.blocks, "number of blocks. Each block has one connection", 1, 4096);
  add_range_option(app, "--threads", sweep.threads, "threads per block, a multiple of 32", 32, 640);
  app.add_option("--bounce", raw.bounces, "memory that holds the bounce pages: gpu or host")
      ->check(CLI::IsMember({"gpu", "host"}))
      ->capture_default_str();
  app.add_option("--copy", raw.movers,
                 "method of copying: registers, bulk or nccl (default: all methods that are available)")
      ->check(CLI::IsMember({"registers", "bulk", "nccl"}));
  app.option_defaults()->delimiter('\0');
  add_size_options(app, raw.sizes);
  app.get_option("--sizes")->description(
      "bytes of a message, up to 4M: one size, a range BEGIN:END (each size is --factor times the previous "
      "size), or a list. Default: 512K; if --latency is set: 4K; if --live is set: 8,4K,64K,512K,1M");
  app.add_flag("--targets", options.targets,
               "run the cases for which the project has target figures, and the latency measurement. The "
               "options above have no effect");
}

void add_run_options(CLI::App& app, UnpackOptions& options, RawOptions& raw) {
  app.option_defaults()->group("How");
  app.add_option("--gpu", options.gpu, "device index")->check(CLI::NonNegativeNumber);
  app.add_option("--footprint", raw.footprint,
                 "minimum payload of a case. The payload should be larger than the L2 cache")
      ->capture_default_str();
  app.add_option("--volume", raw.volume, "approximate payload of one timed launch")->capture_default_str();
  add_range_option(app, "--stages", options.measure.stages, "with --copy bulk: number of stages per warp", 2,
                   32);
  app.add_flag("--latency", options.measure_latency,
               "also measure the latency of single messages, which the host publishes one after the other");
  app.add_option("--messages", raw.messages, "with --latency and --live: number of messages")
      ->check(CLI::Range(10, 1000000));
  app.add_option("--nccl-kernel", options.nccl_kernel,
                 "also measure NCCL's own kernel. FILE is an image that compile-nccl-kernel has created")
      ->type_name("FILE");
}

void add_live_options(CLI::App& app, UnpackOptions& options) {
  app.option_defaults()->group("With a live connection");
  app.add_flag("--live", options.is_live,
               "use data that the plugin receives. For this, the process opens a connection to itself and "
               "sends messages over it");
  app.add_option(
      "--plugin", options.live.plugin,
      "libnccl-net.so to load. Default: libnccl-net.so in the folder ../lib relative to this tool");
  app.add_option("--device", options.live.device, "the plugin's device index")->check(CLI::NonNegativeNumber);
  add_range_option(app, "--abi", options.live.abi_version,
                   "version of NCCL's plugin table to use; 9 means ncclNetPlugin_v9", 7, 12);
}

uint64_t parse_size(const char* option, const std::string& text, uint64_t min_bytes, uint64_t max_bytes) {
  const auto size_bytes = parse_size_bytes(text);
  if (!size_bytes || *size_bytes < min_bytes || *size_bytes > max_bytes) {
    throw CLI::ValidationError(
        option, "not a size from " + format_size(min_bytes) + " to " + format_size(max_bytes) + ": " + text);
  }
  return *size_bytes;
}

PageLengths parse_pages(const std::string& text) {
  if (text == "mixed") return {PageLengths::Kind::kMixed, 0};
  if (text == "ragged") return {PageLengths::Kind::kRagged, 0};
  return {PageLengths::Kind::kFixed, static_cast<uint32_t>(parse_size("--page", text, 1, 1 << 20))};
}

std::vector<uint32_t> parse_aligns(const char* option, const std::vector<std::string>& texts) {
  constexpr uint32_t kAligns = 16;
  std::vector<uint32_t> aligns;
  for (const std::string& text : texts) {
    if (text == "all") {
      aligns.resize(kAligns);
      std::iota(aligns.begin(), aligns.end(), 0U);
      return aligns;
    }
    aligns.push_back(static_cast<uint32_t>(parse_size(option, text, 0, kAligns - 1)));
  }
  return aligns;
}

Mover parse_mover(const std::string& text) {
  for (const Mover mover : {Mover::kBulk, Mover::kNccl})
    if (text == describe_mover(mover)) return mover;
  return Mover::kRegisters;
}

void resolve(UnpackOptions& options, const RawOptions& raw) {
  constexpr uint64_t kMaxMemoryBytes = uint64_t{1} << 40;
  Sweep& sweep = options.sweep;
  sweep.pages.clear();
  for (const std::string& text : raw.pages) sweep.pages.push_back(parse_pages(text));
  if (!raw.sizes.sizes.empty()) {
    options.sizes_bytes = resolve_sizes(raw.sizes);
    for (const uint64_t bytes : options.sizes_bytes)
      if (bytes > kUnpackMaxSliceBytes)
        throw CLI::ValidationError("--sizes", "a message can have at most 4M bytes");
    sweep.slices_bytes = options.sizes_bytes;
  }
  sweep.source_aligns = parse_aligns("--src-align", raw.source_aligns);
  sweep.destination_aligns = parse_aligns("--dst-align", raw.destination_aligns);
  sweep.bounces.clear();
  for (const std::string& text : raw.bounces)
    sweep.bounces.push_back(text == "host" ? BouncePlace::kHost : BouncePlace::kGpu);
  for (const uint32_t threads : sweep.threads)
    if (threads % 32 != 0) throw CLI::ValidationError("--threads", "not a multiple of 32");
  for (const std::string& text : raw.movers) options.movers.push_back(parse_mover(text));
  const bool wants_nccl =
      std::find(options.movers.begin(), options.movers.end(), Mover::kNccl) != options.movers.end();
  if (options.nccl_kernel.empty() && wants_nccl)
    throw CLI::ValidationError("--nccl-kernel", "needed for --copy nccl");
  options.measure.footprint_bytes = parse_size("--footprint", raw.footprint, 0, kMaxMemoryBytes);
  options.measure.volume_bytes = parse_size("--volume", raw.volume, 1, kMaxMemoryBytes);
  if (raw.check) options.measure.iterations = 0;
  if (raw.messages != 0) options.latency.messages = options.live.messages = raw.messages;
  options.measure_latency = options.measure_latency || options.targets;
  options.live.timeout_s = options.measure.timeout_s;
  if (options.live.plugin.empty()) options.live.plugin = find_default_plugin().string();
  options.latency.timeout_s = options.measure.timeout_s;
  options.latency.stages = options.measure.stages;
}

}  // namespace

Parsed<UnpackOptions> parse_options(int argc, const char* const* argv) {
  Parsed<UnpackOptions> parsed;
  UnpackOptions& options = parsed.options;
  RawOptions raw;
  CLI::App app(
      "Unpacks messages on a GPU in the same way as NCCL's kernels, checks every byte, and compares the "
      "speed with the speed of a plain copy.");
  add_sweep_options(app, options, raw);
  add_run_options(app, options, raw);
  add_live_options(app, options);
  bench::add_bench_options(
      app, {raw.check, options.measure.iterations, options.measure.timeout_s, options.output});
  style_help(app, "verbena-bench unpack");
  parsed.exit_status = parse_arguments(app, argc, argv, [&] {
    resolve(options, raw);
    check_output_options(options.output);
  });
  return parsed;
}

}  // namespace verbena::tools::unpack
