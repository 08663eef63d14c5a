#include "nccl-perf/run.h"

#include <deque>
#include <future>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/size.h"
#include "nccl-perf/measurement.h"

namespace verbena::tools::nccl {
namespace {

constexpr double kReportTimeoutS = 10;

// A communicator with its stream and buffers.
struct Lane {
  Gpu gpu;
  NcclComm comm;
  Measurement measurement;

  Lane(const CudaDriver& driver, const NcclLibrary& nccl, NcclComm communicator,
       const NcclPerfOptions& options)
      : gpu(driver, gpu_of_rank(options.child_rank)),
        comm(communicator),
        measurement(nccl, comm, gpu, options) {}
};

class Rank {
 public:
  explicit Rank(const NcclPerfOptions& options) : options_(options), control_(kControlDescriptor) {}

  void run();
  void report(const nlohmann::json& line) {
    control_.send_line(line.dump(), deadline_after_s(kReportTimeoutS));
  }

 private:
  void enter(const std::string& phase) { report({{"phase", phase}}); }
  NcclUniqueId agree_on_id(const NcclLibrary& nccl);
  Measured measure(Operation operation, uint64_t size_bytes);
  void run_operations();

  const NcclPerfOptions& options_;
  LineChannel control_;
  std::deque<Lane> lanes_;  // one for each communicator
};

void Rank::run() {
  enter("CUDA");
  std::string why;
  const CudaDriver* const driver = load_cuda_driver(why);
  if (driver == nullptr) throw ToolError("no CUDA driver: " + why);
  report({{"gpu", Gpu(*driver, gpu_of_rank(options_.child_rank)).name()}});
  enter("load NCCL");
  const NcclLibrary nccl = load_nccl(options_.child_nccl);
  const NcclUniqueId id = agree_on_id(nccl);
  enter("ncclCommInitRank");
  NcclComm comm = nullptr;
  nccl.check(nccl.init_rank(&comm, options_.child_ranks, id, options_.child_rank), "ncclCommInitRank");
  lanes_.emplace_back(*driver, nccl, comm, options_);
  while (lanes_.size() < static_cast<size_t>(options_.communicators)) {
    enter("ncclCommSplit");
    NcclComm part = nullptr;
    nccl.check(nccl.split(comm, 0, options_.child_rank, &part, nullptr), "ncclCommSplit");
    lanes_.emplace_back(*driver, nccl, part, options_);
  }
  run_operations();
  enter("ncclCommDestroy");
  for (auto lane = lanes_.rbegin(); lane != lanes_.rend(); ++lane)
    nccl.check(nccl.destroy(lane->comm), "ncclCommDestroy");
}

NcclUniqueId Rank::agree_on_id(const NcclLibrary& nccl) {
  NcclUniqueId id{};
  if (options_.child_rank == 0) {
    enter("ncclGetUniqueId");
    nccl.check(nccl.get_unique_id(&id), "ncclGetUniqueId");
    report({{"id", id.bytes}});
    return id;
  }
  enter("waiting for the unique id");
  const auto received = control_.receive_line(deadline_after_s(options_.timeout_s));
  if (received.status != LineChannel::Status::kLine) throw HangError("rank 0 sent no unique id");
  id.bytes = nlohmann::json::parse(received.line).at("id").get<decltype(id.bytes)>();
  return id;
}

// The times of the first communicator, the wrong elements of all.
Measured Rank::measure(Operation operation, uint64_t size_bytes) {
  std::vector<std::future<Measured>> others;
  for (size_t index = 1; index < lanes_.size(); ++index) {
    others.push_back(std::async(std::launch::async, [&lane = lanes_[index], operation, size_bytes] {
      lane.gpu.make_current();
      return lane.measurement.measure(operation, size_bytes);
    }));
  }
  Measured measured = lanes_[0].measurement.measure(operation, size_bytes);
  for (std::future<Measured>& other : others) measured.wrong_elements += other.get().wrong_elements;
  return measured;
}

void Rank::run_operations() {
  for (const Operation operation : options_.operations) {
    for (const uint64_t size_bytes : options_.sizes_bytes) {
      enter(std::string(describe_operation(operation)) + " " + format_size(size_bytes));
      const Measured measured = measure(operation, size_bytes);
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

int run_rank(const NcclPerfOptions& options) {
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
  // Exit handlers would wait for NCCL's threads, which may never return after an error.
  std::_Exit(kExitFailed);
}

}  // namespace verbena::tools::nccl
