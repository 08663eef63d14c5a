#include "nccl-perf/rank.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/size.h"
#include "nccl-perf/measurement.h"

namespace verbena::tools::nccl {
namespace {

constexpr double kReportTimeoutS = 10;

class Rank {
 public:
  explicit Rank(const Options& options) : options_(options), control_(kControlDescriptor) {}

  void run();
  void report(const nlohmann::json& line) {
    control_.send_line(line.dump(), deadline_after_s(kReportTimeoutS));
  }

 private:
  void enter(const std::string& phase) { report({{"phase", phase}}); }
  NcclUniqueId agree_on_id(const NcclLibrary& nccl);
  void run_operations(Measurement& measurement);

  const Options& options_;
  LineChannel control_;
};

void Rank::run() {
  enter("CUDA");
  std::string why;
  const CudaDriver* const driver = load_cuda_driver(why);
  if (driver == nullptr) throw ToolError("no CUDA driver: " + why);
  Gpu gpu(*driver, options_.child_rank);
  report({{"gpu", gpu.name()}});
  enter("check kernels");
  const Kernels kernels(*driver);
  check_kernels(gpu, kernels, options_.timeout_s);
  enter("load NCCL");
  const NcclLibrary nccl = load_nccl(options_.child_nccl);
  const NcclUniqueId id = agree_on_id(nccl);
  enter("ncclCommInitRank");
  NcclComm comm = nullptr;
  nccl.check(nccl.init_rank(&comm, options_.child_ranks, id, options_.child_rank), "ncclCommInitRank");
  Measurement measurement(nccl, comm, gpu, kernels, options_);
  run_operations(measurement);
  enter("ncclCommDestroy");
  nccl.check(nccl.destroy(comm), "ncclCommDestroy");
}

NcclUniqueId Rank::agree_on_id(const NcclLibrary& nccl) {
  NcclUniqueId id{};
  if (options_.child_rank == 0) {
    enter("ncclGetUniqueId");
    nccl.check(nccl.get_unique_id(&id), "ncclGetUniqueId");
    report({{"id", id.bytes}});
    return id;
  }
  enter("wait for the unique id");
  const auto received = control_.receive_line(deadline_after_s(options_.timeout_s));
  if (received.status != LineChannel::Status::kLine) throw HangError("no unique id came from rank 0");
  id.bytes = nlohmann::json::parse(received.line).at("id").get<decltype(id.bytes)>();
  return id;
}

void Rank::run_operations(Measurement& measurement) {
  for (const Operation operation : options_.operations) {
    for (const uint64_t size_bytes : options_.sizes_bytes) {
      enter(std::string(describe_operation(operation)) + " " + format_size(size_bytes));
      const Measured measured = measurement.measure(operation, size_bytes);
      nlohmann::json row{{"operation", describe_operation(operation)},
                         {"requested_bytes", size_bytes},
                         {"time_us", measured.time_us},
                         {"p99_us", measured.p99_us},
                         {"wrong", measured.wrong_elements}};
      if (!measured.soak.is_empty()) row["soak"] = describe(measured.soak);
      report({{"row", std::move(row)}});
    }
  }
}

}  // namespace

int run_rank(const Options& options) {
  prepare_child_process();
  Rank rank(options);
  try {
    rank.run();
    rank.report({{"done", true}});
    return kExitOk;
  } catch (const HangError& error) {
    rank.report({{"error", error.what()}, {"hung", true}});
  } catch (const std::exception& error) {
    rank.report({{"error", error.what()}});
  }
  // Exit handlers would wait for NCCL's threads, which may never come back now.
  std::_Exit(kExitFailed);
}

}  // namespace verbena::tools::nccl
