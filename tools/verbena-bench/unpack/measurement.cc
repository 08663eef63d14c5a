#include "verbena-bench/unpack/measurement.h"

#include <algorithm>

#include "common/table.h"

namespace verbena::tools::unpack {
namespace {

void time_launches(Gpu& gpu, const MeasureOptions& options, uint64_t payload_bytes, Figure& figure,
                   const auto& launch) {
  std::vector<double> gbps;
  for (uint32_t iteration = 0; iteration < options.iterations; ++iteration) {
    gpu.mark(0);
    launch();
    gpu.mark(1);
    gpu.wait(options.timeout_s);
    gbps.push_back(static_cast<double>(payload_bytes) * 1e-3 / gpu.measure_us(0));
  }
  figure.gbps = compute_median(gbps);
  figure.p99_gbps = compute_percentile(gbps, 1);
  figure.best_gbps = *std::max_element(gbps.begin(), gbps.end());
}

}  // namespace

std::vector<Figure> measure_case(Gpu& gpu, KernelSet& kernels, Workspace& workspace,
                                 const TestCase& test_case, const std::vector<Mover>& movers,
                                 const MeasureOptions& options) {
  const bool is_timed = options.iterations != 0 && test_case.slice_bytes != 0;
  const UnpackRun once = workspace.lay_out(test_case, is_timed ? options.footprint_bytes : 0);
  UnpackRun run = once;
  const LaunchShape shape{test_case.blocks, test_case.threads, options.stages};
  if (is_timed)
    run.passes =
        static_cast<uint32_t>(std::clamp<uint64_t>(options.volume_bytes / once.payload_bytes(), 1, 1 << 20));
  std::vector<Figure> figures;
  for (const Mover mover : movers) {
    Figure figure;
    figure.mover = mover;
    // The plain copy keeps the order of the bounce pages, so its result cannot be checked.
    if (mover != Mover::kCopy) {
      workspace.reset_buffers(once);
      kernels.launch(mover, once, shape, workspace.bad_counts());
      figure.finding = workspace.check(once);
    } else if (!is_timed) {
      continue;
    }
    if (is_timed) {
      time_launches(gpu, options, run.payload_bytes(), figure,
                    [&] { kernels.launch(mover, run, shape, workspace.bad_counts()); });
      if (mover != Mover::kCopy && figure.finding.wrong_bytes == 0) figure.finding = workspace.check(once);
    }
    figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace verbena::tools::unpack
