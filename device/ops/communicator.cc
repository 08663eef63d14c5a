#include "device/ops/communicator.h"

#include <algorithm>
#include <new>
#include <utility>

#include "device/ops/window_place.h"
#include "tuner/calibration_file.h"
#include "verbena/backends.h"

namespace verbena::ops {
namespace {

// Default sizes of workspaces with kDefaultBlocks blocks. Workspaces with fewer blocks are proportionally
// smaller, so that the length of a slot does not change. But they have at least a fourth of the default size,
// so that a slot can hold the largest message that the kernels for whole vectors send in one shot.
constexpr size_t kPacketBytes = size_t{128} << 20;
constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr uint32_t kLeastShares = kDefaultBlocks / 4;
constexpr uint64_t kNormNumberBytes = 2;
constexpr size_t kErrorTextBytes = 512;

void check_options(const verbena_ops_options& options) {
  if (options.blocks > kSymmMaxBlocks) {
    throw Failure(VERBENA_INVALID_ARGUMENT, "ops: " + std::to_string(options.blocks) + " blocks: at most " +
                                                std::to_string(kSymmMaxBlocks) + " are possible");
  }
}

const SymmContext& context_of(const verbena_team* team) {
  return *static_cast<const SymmContext*>(verbena_team_host_context(team));
}

// Returns whether Verbena's own network reaches the ranks whose memory is not mapped. The result is the same
// on all ranks.
bool has_own_network(verbena_context* context) {
  const SymmContext& world = context_of(verbena_team_world(context));
  return world.has_remote != 0 && world.type == kSymmVerbena;
}

void check_team(const verbena_team* team) {
  const SymmContext& context = context_of(team);
  if (context.team_size > kMaxRanks) {
    throw Failure(VERBENA_INVALID_ARGUMENT, "ops: a team of " + std::to_string(context.team_size) +
                                                " ranks: at most " + std::to_string(kMaxRanks) +
                                                " are possible");
  }
  if (context.has_remote != 0 && context.type != kSymmVerbena) {
    throw Failure(VERBENA_INVALID_USAGE,
                  "ops: this rank cannot load from and store to the memory of some members of the team, and "
                  "the context uses another library's network. Use a team whose members all belong to "
                  "verbena_team_lsa(), or create the context by verbena_context_create()");
  }
}

SymmetricTeam split(verbena_context* context, const verbena_team* parent, int64_t color, int64_t key) {
  verbena_team* team = nullptr;
  check(verbena_team_split(context, parent, color, key, &team));
  return SymmetricTeam(team, true);
}

std::vector<uint8_t> find_members(const verbena_team* part, const verbena_team* team) {
  std::vector<uint8_t> members;
  for (uint32_t i = 0; i < verbena_team_size(part); ++i) {
    uint32_t member = 0;
    while (verbena_team_world_rank(team, member) != verbena_team_world_rank(part, i)) ++member;
    members.push_back(static_cast<uint8_t>(member));
  }
  return members;
}

SymmetricWorkspace make_workspace(verbena_context* context, const verbena_team* team, size_t bytes,
                                  uint32_t blocks) {
  verbena_workspace* workspace = nullptr;
  check(verbena_workspace_create(context, team, bytes, blocks, &workspace));
  return SymmetricWorkspace(workspace);
}

}  // namespace

HostNotes::HostNotes(const Driver& driver) : driver_(driver) {
  void* memory = nullptr;
  driver_.check(
      driver_.cuMemHostAlloc(&memory, sizeof(Content), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
      "cannot allocate host memory for the status");
  content_ = new (memory) Content{};
}

HostNotes::~HostNotes() {
  driver_.cuMemFreeHost(content_);
}

Communicator::Local::Local()
    : kernels(KernelSet::share()), notes(Driver::instance()), gpu(Driver::instance().find_gpu()) {}

Communicator::Communicator(verbena_context* context, const verbena_team* team,
                           const verbena_ops_options& options)
    : context_(context), options_(options) {
  const SymmetricTeam host = find_hosts(team);
  const bool is_across = host.handle() != nullptr;
  Proposal mine;
  std::exception_ptr failure;
  try {
    prepare(team, mine);
    mine.is_across_hosts = is_across ? 1 : 0;
  } catch (const Failure& cause) {
    failure = std::current_exception();
    mine.take_failure(cause);
  }
  const Agreement agreement = agree(context_, mine, failure);
  options_.blocks = agreement.blocks;
  if (agreement.any_inside) make_workspaces(is_across ? nullptr : team);
  if (agreement.any_across)
    make_workspaces_across(is_across ? team : nullptr, host.handle(), agreement.has_clusters);
  if (local_) make_chooser(agreement);
  is_alive_.emplace();
}

// Does everything that this rank can do before the collective steps.
void Communicator::prepare(const verbena_team* team, Proposal& mine) {
  check_options(options_);
  load_settings(mine);
  mine.packet_bytes = options_.packet_bytes;
  mine.chunk_bytes = options_.chunk_bytes;
  mine.has_windows = options_.has_windows != 0 ? 1 : 0;
  mine.programmatic_launch = options_.programmatic_launch;
  mine.are_own_blocks = options_.blocks != 0 ? 1 : 0;
  mine.blocks = options_.blocks != 0 ? options_.blocks : kDefaultBlocks;
  if (team == nullptr) return;
  check_team(team);
  rank_ = verbena_team_rank(team);
  size_ = verbena_team_size(team);
  if (hosts_ && hosts_->count * hosts_->of_this_one != size_) {
    throw Failure(VERBENA_INVALID_USAGE,
                  "ops: the team does not have the same number of ranks on each host. Of the team's " +
                      std::to_string(size_) + " ranks, this host has " + std::to_string(hosts_->of_this_one) +
                      ". Create the team with the same number of ranks on each host");
  }
  local_.emplace();
  for (uint32_t member = 0; member < size_; ++member)
    local_->world_ranks.push_back(verbena_team_world_rank(team, member));
  mine.team = local_->world_ranks.front() + 1;
  mine.has_clusters = local_->gpu.has_clusters ? 1 : 0;
  local_->gpu.name.copy(mine.gpu, sizeof(mine.gpu) - 1);
  if (options_.blocks == 0)
    mine.blocks = choose_max_blocks(local_->gpu.multiprocessors, LiveKernels::count());
}

void Communicator::make_chooser(const Agreement& agreement) {
  Platform platform;
  platform.ranks = size_;
  platform.blocks = options_.blocks;
  if (!hosts_) platform.packet_slot_bytes = workspace_of(Family::kPackets).workspace().blocks.slot_bytes;
  platform.has_clusters = agreement.has_clusters;
  platform.hosts = hosts_ ? hosts_->count : 1;
  platform.forced = forced_;
  std::string gpu;
  // FAULT(own_gpus_measurements_count)
  if (agreement.have_same_gpu) gpu = local_->gpu.name;
  chooser_.emplace(platform, measurements_, gpu);
}

void Communicator::make_workspaces(const verbena_team* team) {
  // FAULT(workspaces_have_one_size)
  const size_t shares = std::clamp(options_.blocks, kLeastShares, kDefaultBlocks);
  const auto size = [shares](size_t asked, size_t all) {
    return asked != 0 ? asked : all / kDefaultBlocks * shares;
  };
  workspace_of(Family::kPackets) =
      make_workspace(context_, team, size(options_.packet_bytes, kPacketBytes), options_.blocks);
  workspace_of(Family::kChunks) = make_workspace(context_, team, size(options_.chunk_bytes, kChunkBytes),
                                                 count_chunk_blocks(options_.blocks));
}
// The workspaces are slightly longer than the default size, so that a half of a slot has a power of two bytes
// besides the flags. A tensor then needs no short chunk after its full chunks.
void Communicator::make_workspaces_across(const verbena_team* team, const verbena_team* host,
                                          bool has_clusters) {
  const uint32_t blocks = count_host_blocks(options_.blocks);
  const Grid grid = arrange_in_clusters({blocks, kMaxThreads}, has_clusters);
  const uint32_t parts = grid.blocks / grid.cluster;
  const size_t flags = size_t{parts} * kSymmTurns * kMaxRanks * kSymmSlotUnit;
  const size_t bytes = options_.chunk_bytes != 0 ? options_.chunk_bytes : kChunkBytes + flags;
  across_ = make_workspace(context_, team, bytes, parts);
  host_ = make_workspace(context_, host, bytes, parts);
}

// Hosts are sorted by their first ranks. The ranks of a host are in team order, and the counterpart on
// another host has the same position there.
SymmetricTeam Communicator::find_hosts(const verbena_team* team) {
  if (!has_own_network(context_)) return SymmetricTeam(nullptr, false);
  const bool spans = team != nullptr && context_of(team).has_remote != 0;
  const verbena_team* const parent = spans ? team : nullptr;
  const int64_t first = spans ? context_of(team).lsa_base_rank : -1;
  SymmetricTeam host = split(context_, parent, first, spans ? verbena_team_rank(team) : 0);
  const int64_t number = spans ? verbena_team_rank(host.handle()) : -1;
  const SymmetricTeam counterparts = split(context_, parent, number, first);
  const SymmetricTeam by_hosts =
      split(context_, parent, 0, spans ? first * verbena_team_size(team) + verbena_team_rank(team) : 0);
  if (spans) hosts_ = {counterparts.size(), host.size(), find_members(by_hosts.handle(), team)};
  return host;
}

void Communicator::expect_one_host(const char* what) const {
  if (hosts_) refuse_hosts(what);
}

void Communicator::load_settings(Proposal& mine) {
  verbena_ops_settings settings{};
  check(verbena_get_ops_settings(&settings));
  forced_ = static_cast<Algorithm>(settings.algorithm);
  checks_calls_ = settings.checks_calls != 0;
  mine.algorithm = settings.algorithm;
  mine.checks_calls = settings.checks_calls;
  const std::string file = options_.tuning_file != nullptr ? options_.tuning_file : settings.tuning_file;
  if (file.empty()) return;
  const tuner::ParsedCalibration parsed = tuner::read_calibration_file(file);
  if (!parsed.calibration) {
    // An error logs a line, and the library falls back to its built-in rules.
    static_cast<void>(
        verbena_fail(VERBENA_INVALID_USAGE, ("ops: the tuning file " + file + ": " + parsed.problem +
                                             ". The library's built-in rules choose algorithms instead")
                                                .c_str()));
    return;
  }
  tuner::Calibration chosen_by;
  chosen_by.ops = parsed.calibration->ops;
  mine.measurements = tuner::compute_fingerprint(chosen_by);
  measurements_ = std::move(chosen_by.ops);
}

// Returns all existing workspaces. The workspace across hosts comes first, because its error can name a late
// rank of any host.
std::vector<const SymmetricWorkspace*> Communicator::list_workspaces() const {
  std::vector<const SymmetricWorkspace*> all = {&across_, &host_};
  for (const SymmetricWorkspace& one : workspaces_) all.push_back(&one);
  std::erase_if(all, [](const SymmetricWorkspace* one) { return one->handle() == nullptr; });
  return all;
}

// Kernels that are still in a stream end because of the failure. But a late rank's kernel could mistake
// cleared slots for slots of a new call. So each rank waits for its GPU before the collective reset, and no
// rank clears a slot before all ranks have waited.
void Communicator::reset() {
  is_grouped_ = false;
  group_.clear();
  if (local_) local_->kernels->synchronize();  // FAULT(reset_waits_for_no_kernel)
  for (const SymmetricWorkspace* const workspace : list_workspaces())
    check(verbena_workspace_reset(workspace->handle()));
  if (local_) local_->notes.clear();
  failure_.reset();
}

// If nothing has failed, this takes only one load.
void Communicator::expect_in_step() const {
  expect_member();
  if (local_->notes.status() == 0) return;
  if (!failure_) {
    try {
      check_error();
    } catch (const Failure& failure) {
      failure_ = failure;
    }
  }
  if (failure_) throw Failure(*failure_);
}

void Communicator::check_error() const {
  if (local_ && local_->notes.status() != 0) {
    if (const std::string text = describe_difference(); !text.empty())
      throw Failure(VERBENA_INVALID_ARGUMENT, text);
  }
  char text[kErrorTextBytes] = "";
  for (const SymmetricWorkspace* const workspace : list_workspaces()) {
    const verbena_result result = verbena_workspace_get_error(workspace->handle(), text, sizeof(text));
    if (result != VERBENA_SUCCESS)
      throw Failure(result, std::string("ops: ") + text +
                                ". The results of this call and of later calls are NaN until all ranks have "
                                "called verbena_ops_reset()");
  }
  const verbena_result result = verbena_context_get_error(context_, text, sizeof(text));
  // Timeouts and invalid arguments may belong to other teams and workspaces of the context, so they are
  // ignored.
  if (result != VERBENA_SUCCESS && result != VERBENA_TIMEOUT && result != VERBENA_INVALID_ARGUMENT)
    throw Failure(result, text);
  if (!local_ || local_->notes.status() == 0) return;
  throw Failure(VERBENA_REMOTE_ERROR,
                "ops: an earlier call failed and has no result (status " +
                    std::to_string(local_->notes.status()) +
                    "). Call verbena_ops_reset() on all ranks to make the communicator usable again");
}

void Communicator::expect_member() const {
  if (!local_) throw Failure(VERBENA_INVALID_USAGE, "ops: this rank is not a member of the team");
}

const Chooser& Communicator::chooser() const {
  expect_member();
  return *chooser_;
}

void Communicator::submit(const Call& call, const Choice& choice, CUstream stream) {
  expect_in_step();
  if (is_grouped_) {
    group_.push_back({call, choice});
  } else {
    const Pending one{call, choice};
    launch({&one, 1}, stream);
  }
}

void Communicator::expect_no_group() const {
  if (!is_grouped_) return;
  throw Failure(VERBENA_INVALID_USAGE,
                "ops: a norm cannot be part of a group. Make this call before or after the group");
}

void Communicator::submit_norm(const Call& call, const Choice& choice, const Norm& norm,
                               const Finalize* finalize, CUstream stream) {
  expect_in_step();
  expect_no_group();
  const bool is_local = call.kind == Kind::kNorm || call.kind == Kind::kFinalize;
  if (!is_local) expect_one_host("a fused all-reduce and norm");
  FinalizeLaunch launch;
  begin_launch(choice, launch);
  launch.call = call;
  launch.call.algorithm = choice.algorithm;
  launch.norm = norm;
  const Grid grid =
      call.kind == Kind::kAllReduceNorm
          ? chooser_->spread_rows(choice.algorithm, norm.rows, norm.hidden * kNormNumberBytes).value()
          : chooser_->spread_norm(norm.rows, !is_local);
  launch.rows_at_once = grid.rows;
  if (checks_calls_ && !is_local) compare_calls(make_record(launch.call, norm, grid), nullptr, stream);
  if (finalize == nullptr)
    return local_->kernels->launch_norm(grid, static_cast<const NormLaunch&>(launch), stream);
  launch.finalize = *finalize;
  local_->kernels->launch_norm(grid, launch, stream);
}

void Communicator::begin_group() {
  expect_in_step();
  if (is_grouped_)
    throw Failure(VERBENA_INVALID_USAGE,
                  "ops: a group is already open. End this group before you begin another");
  is_grouped_ = true;
}

void Communicator::end_group(CUstream stream) {
  if (!is_grouped_)
    throw Failure(VERBENA_INVALID_USAGE, "ops: no group is open. Begin a group before you end it");
  is_grouped_ = false;
  const std::vector<Pending> calls = std::exchange(group_, {});
  expect_in_step();
  for (size_t begin = 0; begin < calls.size();) {
    size_t end = begin + 1;
    const auto is_alike = [&](const Pending& one) {
      // FAULT(group_mixes_chunk_lengths)
      return family_of(one.choice.algorithm) == family_of(calls[begin].choice.algorithm) &&
             one.choice.chunk_bytes == calls[begin].choice.chunk_bytes && !is_coded(one.choice.algorithm) &&
             !is_coded(calls[begin].choice.algorithm) &&
             (one.choice.algorithm == Algorithm::kLossless) ==
                 (calls[begin].choice.algorithm == Algorithm::kLossless);
    };
    while (end < calls.size() && end - begin < kMaxCalls && is_alike(calls[end])) ++end;
    launch(std::span(calls).subspan(begin, end - begin), stream);
    begin = end;
  }
}

void Communicator::begin_launch(const Choice& choice, Launch& launch) {
  launch.host = nullptr;
  launch.hosts = 1;
  if (hosts_) {
    place_in_hosts(launch);
  } else {
    launch.workspace = workspace_of(family_of(choice.algorithm)).workspace();
  }
  launch.status = local_->notes.status_address();
  launch.chunk_bytes = choice.chunk_bytes;
  launch.programmatic_launch = options_.programmatic_launch;
  launch.pause_before_ns = options_.pause_before_ns;
  launch.pause_after_ns = options_.pause_after_ns;
}

// The ranks on the host of a late rank should be the first to report it, so waits between hosts have a
// timeout that is a quarter longer.
void Communicator::place_in_hosts(Launch& launch) const {
  launch.workspace = across_.workspace();
  // FAULT(hosts_wait_no_longer)
  launch.workspace.context.timeout_ns += launch.workspace.context.timeout_ns / 4;
  launch.host = host_.device_workspace();
  launch.hosts = hosts_->count;
  std::copy(hosts_->members.begin(), hosts_->members.end(), launch.members);
}

// Launches calls of one family, or one quantised call. The grid is the largest grid that any of the calls
// needs.
void Communicator::launch(std::span<const Pending> calls, CUstream stream) {
  if (checks_calls_) {
    for (const auto& [call, choice] : calls) {
      const bool have_same_counts =
          call.lengths == Lengths::kByReceiver || call.lengths == Lengths::kBySender;
      CallRecord record = make_record(call, choice.algorithm, choice.grid, choice.chunk_bytes);
      if (choice.algorithm == Algorithm::kDirect && call.kind == Kind::kAllReduce) {
        if (const auto place = find_window_place(context_, call.input, call.length_bytes))
          record.input_place = place->offset;
        if (const auto place = find_window_place(context_, call.output, call.length_bytes))
          record.output_place = place->offset;
      }
      compare_calls(record, have_same_counts ? call.counts : nullptr, stream);
    }
  }
  put(calls, stream);
}

void Communicator::put(std::span<const Pending> calls, CUstream stream) {
  const Choice& first = calls.front().choice;
  if (is_coded(first.algorithm)) return launch_coded(calls.front(), stream);
  GroupLaunch launch;
  begin_launch(first, launch);
  launch.count_calls = static_cast<uint32_t>(calls.size());
  bool has_all_reduces = false, has_exchanges = false;
  Grid grid{0, 0};
  for (size_t i = 0; i < calls.size(); ++i) {
    launch.calls[i] = calls[i].call;
    launch.calls[i].algorithm = calls[i].choice.algorithm;
    (calls[i].call.kind == Kind::kAllReduce ? has_all_reduces : has_exchanges) = true;
    grid.blocks = std::max(grid.blocks, calls[i].choice.grid.blocks);
    grid.threads = std::max(grid.threads, calls[i].choice.grid.threads);
  }
  if (hosts_) return local_->kernels->launch_across_hosts(chooser_->arrange(grid), launch, stream);
  const Content content = !has_exchanges     ? Content::kAllReduces
                          : !has_all_reduces ? Content::kExchanges
                                             : Content::kAnything;
  local_->kernels->launch(family_of(first.algorithm), content, grid, launch, stream);
}

void Communicator::launch_coded(const Pending& one, CUstream stream) {
  CallLaunch launch;
  begin_launch(one.choice, launch);
  launch.call = one.call;
  launch.call.algorithm = one.choice.algorithm;
  local_->kernels->launch_coded(hosts_ ? chooser_->arrange(one.choice.grid) : one.choice.grid, launch,
                                stream);
}

bool Communicator::are_in_windows(const Call& call) const {
  for (const char* const tensor : {call.input, static_cast<const char*>(call.output)})
    if (reinterpret_cast<uintptr_t>(tensor) % 16 != 0 ||
        !find_window_place(context_, tensor, call.length_bytes))
      return false;
  return true;
}

// Sends each rank's record to all ranks, and enqueues a kernel that compares the records. Both run in the
// stream, so the calls of replayed graphs are compared, too.
void Communicator::compare_calls(const CallRecord& record, const int64_t* counts, CUstream stream) {
  CompareLaunch compare;
  begin_launch({Algorithm::kOneShot, {1, 32}, 0}, compare);
  compare.record = record;
  compare.counts = counts;
  compare.own = local_->notes.own_record();
  compare.all = local_->notes.records();
  compare.refused = local_->notes.refused_record();
  local_->kernels->record_call(compare, stream);
  Call gather{};
  gather.kind = Kind::kExchange;
  gather.input = reinterpret_cast<const char*>(compare.own);
  gather.output = reinterpret_cast<char*>(compare.all);
  gather.length_bytes = sizeof(record);
  gather.source = {0, 1, 1};
  gather.destination = {sizeof(record), 1, 1};
  const Pending one{gather, {hosts_ ? Algorithm::kBulkTwoShot : Algorithm::kOneShot, {1, 32}, 0}};
  put({&one, 1}, stream);
  local_->kernels->compare_calls(compare, stream);
}

// Returns a description of the call in which the ranks differed, or an empty text if there was none.
std::string Communicator::describe_difference() const {
  const CallRecord& mine = *local_->notes.refused_record();
  if (are_alike(mine, {})) return "";
  for (uint32_t member = 0; member < size_; ++member) {
    const CallRecord& theirs = local_->notes.records()[member];
    if (are_alike(theirs, mine)) continue;
    return "ops: ranks " + std::to_string(rank_) + " and " + std::to_string(member) +
           " of the team make different calls: " + describe(mine) + ", and " + describe(theirs) +
           ". All ranks must make the same calls in the same order (VERBENA_OPS_CHECK)";
  }
  return "";
}

// Runs an exchange of empty messages, in which each rank receives a message from every other rank.
void Communicator::meet(void* output, uint64_t output_bytes, CUstream stream) {
  Call call{};
  call.output = static_cast<char*>(output);
  call.output_bytes = output_bytes;
  call.kind = Kind::kExchange;
  call.lengths = Lengths::kFromRoot;
  call.root = -1;
  call.length_bytes = 1;
  call.source = call.destination = {0, 1, 1};
  const Pending one{call, {Algorithm::kOneShot, {1, 32}, 0}};
  put({&one, 1}, stream);
}

void Communicator::gather_by_copies(const void* input, void* output, uint64_t length_bytes, CUstream stream) {
  expect_in_step();
  expect_one_host("an all-gather by copy engines");
  if (is_grouped_)
    throw Failure(VERBENA_INVALID_USAGE,
                  "ops: an all-gather by copy engines cannot be part of a group. Call the all-gather outside "
                  "the group");
  const auto place = find_window_place(context_, output, size_ * length_bytes);
  if (!place) {
    throw Failure(VERBENA_INVALID_ARGUMENT,
                  "ops: an all-gather by copy engines needs an output in a window (verbena_window_allocate). "
                  "Use such an output, or choose another algorithm");
  }
  if (checks_calls_) {
    Call call{};
    call.kind = Kind::kExchange;
    call.algorithm = Algorithm::kCopyEngines;
    call.length_bytes = length_bytes;
    CallRecord record = make_record(call, Algorithm::kCopyEngines, {}, 0);
    record.output_place = place->offset;
    compare_calls(record, nullptr, stream);
  }
  // Before this barrier, peers may still use their outputs. After it, all data has arrived.
  meet(nullptr, 0, stream);
  for (uint32_t turn = 0; turn < size_; ++turn) {
    const uint32_t member = (rank_ + turn) % size_;
    char* const there =
        static_cast<char*>(verbena_window_peer_address(place->window, local_->world_ranks[member])) +
        place->offset + rank_ * length_bytes;
    if (there != input) local_->kernels->copy(there, input, length_bytes, stream);
  }
  meet(output, size_ * length_bytes, stream);
}

void Communicator::pause(uint64_t length_ns, CUstream stream) {
  expect_member();
  local_->kernels->pause(length_ns, stream);
}

}  // namespace verbena::ops
