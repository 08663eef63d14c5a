#include "device/ops/moe_exchange.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <tuple>
#include <vector>

#include "device/ops/agreement.h"
#include "device/ops/choice.h"
#include "device/ops/window_place.h"
#include "verbena/backends.h"

namespace verbena::ops {
namespace {

constexpr size_t kMoeErrorBytes = 512;
using device::kMoePacketBytes;

template <typename... Parts>
[[noreturn]] void refuse(verbena_result result, const Parts&... parts) {
  std::string text = "moe: ";
  const auto add = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (add(parts), ...);
  throw Failure(result, text);
}
template <typename... Parts>
void expect_valid(bool condition, const Parts&... parts) {
  if (!condition) refuse(VERBENA_INVALID_ARGUMENT, parts...);
}
void expect_range(const char* name, uint64_t value, uint64_t min, uint64_t max) {
  expect_valid(value >= min && value <= max, name, " is ", value, "; it must be from ", min, " to ", max);
}
void expect_multiple(const char* name, uint64_t value, uint64_t of) {
  expect_valid(value % of == 0, name, " is ", value, "; it must be a multiple of ", of);
}
// Addresses are checked here, because a misaligned access in a kernel would destroy the CUDA context.
void expect_aligned(const char* name, const void* address, size_t bytes = kMoePacketBytes) {
  expect_valid(address != nullptr && reinterpret_cast<uintptr_t>(address) % bytes == 0, name,
               " is NULL, or its address is not a multiple of ", bytes, " bytes");
}

// list_alike() lists the arguments that must be the same in all phases of a call. list_output() lists the
// arguments that may change after RECEIVE_IDS.
auto list_alike(const verbena_moe_dispatch_arguments& call) {
  return std::tie(call.tokens, call.row_bytes, call.rows, call.row_stride, call.scale_bytes, call.id_bits,
                  call.scales, call.scale_stride, call.ids, call.id_stride, call.weights, call.handle,
                  call.quantisation, call.type, call.grouping, call.alignment, call.column_scales);
}
auto list_output(const verbena_moe_dispatch_arguments& call) {
  return std::tie(call.output, call.output_scales, call.output_rows, call.row_sources, call.row_experts);
}
auto list_alike(const verbena_moe_combine_arguments& call) {
  return std::tie(call.tokens, call.order, call.type, call.rows, call.handle, call.grouping, call.weights);
}
auto list_output(const verbena_moe_combine_arguments& call) {
  return std::tie(call.output);
}

// One rank's part of the agreement on a new exchange, sent as raw bytes.
struct MoeProposal {
  verbena_moe_options options;
  uint32_t blocks;
  uint32_t ranks;                              // number of ranks of the team; 0 if this rank is not a member
  uint32_t world_ranks[device::kMoeMaxRanks];  // of the team's members
  uint32_t host;  // world rank of the team's first member that loads and stores reach
  uint32_t has_failed;
  char failure[kFailureBytes];
};

// For each host of a team, a bit for each of its ranks. Hosts are sorted by their first ranks.
using HostRanks = std::vector<uint32_t>;

struct MoeAgreement {
  uint32_t blocks;  // max number of blocks that fit on every GPU
  struct Team {
    uint32_t ranks;
    HostRanks hosts;
  };
  std::vector<Team> teams;  // [ranks of the context]; no hosts for ranks that are not members
};

HostRanks find_hosts(const MoeProposal& team, const std::vector<MoeProposal>& all) {
  std::vector<uint32_t> firsts;
  HostRanks hosts;
  for (uint32_t rank = 0; rank < team.ranks; ++rank) {
    const uint32_t first = all[team.world_ranks[rank]].host;
    const auto at = static_cast<size_t>(std::find(firsts.begin(), firsts.end(), first) - firsts.begin());
    if (at == firsts.size()) {
      firsts.push_back(first);
      hosts.push_back(0);
    }
    hosts[at] |= 1U << rank;
  }
  return hosts;
}
void check_hosts(const HostRanks& hosts, uint32_t ranks) {
  if (hosts.size() > device::kMoeMaxHosts)
    refuse(VERBENA_INVALID_USAGE, "the team spans ", hosts.size(), " hosts; at most ", device::kMoeMaxHosts,
           " are possible");
  for (const uint32_t host : hosts) {
    if (std::popcount(host) * hosts.size() == ranks) continue;
    refuse(VERBENA_INVALID_USAGE, "the team does not have the same number of ranks on each host. Of ", ranks,
           " ranks on ", hosts.size(), " hosts, one host has ", std::popcount(host),
           ". Create the team with the same number of ranks on each host");
  }
}

// Compares the proposals. Collective. Throws on all ranks if a rank has failed or if options differ.
MoeAgreement agree_on_moe(verbena_context* context, const MoeProposal& mine,
                          const std::exception_ptr& failure) {
  std::vector<MoeProposal> all(verbena_context_size(context));
  check(verbena_context_gather(context, &mine, all.data(), sizeof(mine)));
  if (failure) std::rethrow_exception(failure);
  MoeAgreement agreement{device::kMoeMaxBlocks, {}};
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const MoeProposal& one = all[rank];
    if (one.has_failed != 0)
      refuse(VERBENA_REMOTE_ERROR, "rank ", rank,
             " cannot make the exchange: ", std::string(one.failure, strnlen(one.failure, kFailureBytes)));
    if (std::memcmp(&one.options, &all.front().options, sizeof(one.options)) != 0)
      refuse(VERBENA_INVALID_USAGE, "ranks 0 and ", rank,
             " passed different verbena_moe_options. The options must be the same on all ranks");
    if (one.ranks == 0) continue;
    agreement.blocks = std::min(agreement.blocks, one.blocks);
  }
  for (const MoeProposal& one : all) {
    MoeAgreement::Team& team = agreement.teams.emplace_back();
    if (one.ranks == 0) continue;
    team = {one.ranks, find_hosts(one, all)};
    check_hosts(team.hosts, team.ranks);
    if (team.hosts.size() > 1 && one.options.exact != 0)
      refuse(
          VERBENA_INVALID_USAGE,
          "verbena_moe_options::exact works only if all ranks of the team are on one host, because each host "
          "sends only one sum to another host. Use VERBENA_MOE_ROWS or VERBENA_MOE_REDUCED, without `exact`");
    if (team.hosts.size() > 1 && one.options.in_windows != 0)
      refuse(
          VERBENA_INVALID_USAGE,
          "verbena_moe_options::in_windows works only if all ranks of the team are on one host, because "
          "loads and stores do not reach windows on other hosts. Create the exchange without `in_windows`");
  }
  return agreement;
}

}  // namespace

device::MoeShape make_moe_shape(const verbena_moe_options& options, uint32_t ranks, uint32_t blocks,
                                uint32_t hosts) {
  expect_range("the number of ranks", ranks, 1, device::kMoeMaxRanks);
  expect_range("max_tokens", options.max_tokens, 1, device::kMoeMaxTokens);
  const uint32_t most = device::kMoeMaxMaskWords / ranks * device::kMoeMaskBits;
  expect_valid(options.max_tokens <= most, "max_tokens is ", options.max_tokens, "; between ", ranks,
               " ranks, it must be at most ", most);
  expect_range("top_k", options.top_k, 1, device::kMoeMaxTopK);
  expect_range("experts", options.experts, 1, device::kMoeMaxExperts);
  expect_multiple("experts", options.experts, ranks);
  expect_range("hidden", options.hidden, 8, 1 << 20);
  expect_multiple("hidden", options.hidden, 8);
  expect_range("max_row_bytes", options.max_row_bytes, 0, 1 << 21);
  expect_multiple("max_row_bytes", options.max_row_bytes, kMoePacketBytes);
  expect_range("max_scale_bytes", options.max_scale_bytes, 0, 1 << 21);
  expect_range("blocks", options.blocks, 0, device::kMoeMaxBlocks);
  const uint32_t combined_bytes = 2 * options.hidden;
  const uint32_t row_bytes = options.max_row_bytes == 0 ? combined_bytes : options.max_row_bytes;
  device::MoeShape shape{};
  shape.set_experts(ranks, options.experts);
  shape.max_tokens = options.max_tokens;
  shape.top_k = options.top_k;
  shape.max_blocks = blocks;
  shape.row_packets =
      row_bytes / kMoePacketBytes + device::moe_divide_up<uint32_t>(options.max_scale_bytes, kMoePacketBytes);
  shape.combine_packets = combined_bytes / kMoePacketBytes;
  expect_range("the number of hosts", hosts, 1, device::kMoeMaxHosts);
  expect_multiple("the number of ranks", ranks, hosts);
  shape.rows_of_token = options.exact != 0 ? options.top_k : std::min(ranks / hosts, options.top_k);
  shape.hosts = hosts;
  expect_valid(options.in_windows == 0 || hosts == 1, "in_windows works only on one host");
  shape.in_windows = options.in_windows != 0 ? 1 : 0;
  shape.chunk_bits = choose_chunk_bits(options.max_tokens);
  return shape;
}

uint32_t find_max_rows(const device::MoeShape& shape, verbena_moe_grouping grouping, uint32_t alignment) {
  const uint32_t rows = shape.ranks * shape.max_tokens, experts = shape.local_experts;
  if (grouping == VERBENA_MOE_BY_RANK) return rows;
  if (grouping == VERBENA_MOE_BY_EXPERT) return rows * experts;
  expect_range("alignment", alignment, 0, device::kMoeMaxAlignment);
  // The number of groups that have rows is not larger than the number of rows.
  const uint32_t placed = rows * std::min(shape.top_k, experts);
  return placed + std::min(experts, placed) * (std::max(1U, alignment) - 1);
}

MoeExchange::MoeExchange(verbena_context* context, const verbena_team* team,
                         const verbena_moe_options& options)
    : context_(context), options_(options) {
  MoeProposal mine{};
  std::exception_ptr failure;
  try {
    mine.options = options;
    if (team != nullptr) {
      mine.ranks = verbena_team_size(team);
      static_cast<void>(make_moe_shape(options, mine.ranks, 1));
      const auto& of_team = *static_cast<const SymmContext*>(verbena_team_host_context(team));
      if (of_team.has_remote != 0 && of_team.type != kSymmVerbena)
        refuse(VERBENA_INVALID_USAGE,
               "this rank cannot load from and store to the memory of some ranks of the team, and the "
               "context uses another library's network. Create the team from ranks that belong to "
               "verbena_team_lsa(), or create the context by verbena_context_create()");
      for (uint32_t member = 0; member < mine.ranks; ++member)
        mine.world_ranks[member] = verbena_team_world_rank(team, member);
      mine.host = mine.world_ranks[of_team.lsa_base_rank];
      local_.emplace();
      local_->kernels->load_moe();
      const uint32_t multiprocessors = local_->gpu.multiprocessors;
      // Blocks wait for blocks of other ranks, so all blocks must run at the same time.
      expect_valid(options.blocks <= multiprocessors, "blocks is ", options.blocks, "; this GPU has ",
                   multiprocessors, " multiprocessors, and each multiprocessor runs one block");
      mine.blocks = options.blocks != 0 ? options.blocks
                                        : std::min(choose_max_blocks(multiprocessors, LiveKernels::count()),
                                                   device::kMoeMaxBlocks);
    }
  } catch (const Failure& cause) {
    failure = std::current_exception();
    mine.has_failed = 1;
    std::strncpy(mine.failure, cause.what(), sizeof(mine.failure) - 1);
  }
  const auto [blocks, teams] = agree_on_moe(context, mine, failure);
  // All ranks of the context create workspaces of the same length, which is enough for each team.
  size_t bytes = 0;
  for (const auto& [size, hosts] : teams) {
    if (size == 0) continue;
    const size_t rounding = size_t{2} * blocks * kSymmTurns * kSymmSlotUnit * size;
    const auto count = static_cast<uint32_t>(hosts.size());
    bytes =
        std::max<size_t>(bytes, make_moe_shape(options, size, blocks, count).workspace_bytes() + rounding);
  }
  if (team != nullptr) {
    const HostRanks& hosts = teams[verbena_context_rank(context)].hosts;
    shape_ = make_moe_shape(options, mine.ranks, blocks, static_cast<uint32_t>(hosts.size()));
    me_ = verbena_team_rank(team);
    std::copy(hosts.begin(), hosts.end(), hosts_.ranks);
    while ((hosts[hosts_.mine] >> me_ & 1) == 0) ++hosts_.mine;
    hosts_.index = static_cast<uint32_t>(std::popcount(hosts[hosts_.mine] & ((1U << me_) - 1)));
    shape_.near = hosts[hosts_.mine];
  }
  verbena_workspace* workspace = nullptr;
  check(verbena_workspace_create(context, team, bytes, 2 * blocks, &workspace));
  workspace_ = SymmetricWorkspace(workspace);
  is_alive_.emplace();
}

void MoeExchange::reset() {
  if (local_) local_->kernels->synchronize();
  check(verbena_workspace_reset(workspace_.handle()));
  if (local_) local_->notes.clear();
  sent_dispatch_.reset();
  sent_combine_.reset();
  in_all_calls_ = ~0U;
}

void MoeExchange::set_mask(uint64_t living) {
  expect_member();
  const uint64_t all = (uint64_t{1} << shape_.ranks) - 1;
  expect_valid((living & ~all) == 0, "the mask ", living,
               " contains ranks that are not in the team. The team has ", shape_.ranks, " ranks");
  expect_valid((living >> me_ & 1) != 0, "the mask excludes this rank, ", me_,
               ", but an excluded rank must not make calls");
  if (sent_dispatch_ || sent_combine_)
    refuse(VERBENA_INVALID_USAGE,
           "the mask cannot change while a call is in flight. Call VERBENA_MOE_RECEIVE first");
  if ((living & ~uint64_t{in_all_calls_}) != 0)
    refuse(VERBENA_INVALID_USAGE,
           "the mask contains ranks that were excluded from earlier calls. Call verbena_moe_reset() on all "
           "ranks to let these ranks take part again");
  expect_whole_hosts(static_cast<uint32_t>(living));
  shape_.living = static_cast<uint32_t>(living);
  shape_.near = shape_.living & hosts_.ranks[hosts_.mine];
}
// A rank's tokens reach another host only through the rank's counterpart there.
void MoeExchange::expect_whole_hosts(uint32_t living) const {
  std::optional<uint32_t> indices;  // bits of the living ranks' indices on a host
  for (uint32_t host = 0; host < shape_.hosts; ++host) {
    uint32_t of_host = 0, index = 0;
    for (uint32_t left = hosts_.ranks[host]; left != 0; left &= left - 1, ++index)
      of_host |= (living >> std::countr_zero(left) & 1) << index;
    if (of_host == 0) continue;
    expect_valid(!indices || *indices == of_host, "the mask ", living,
                 " excludes some ranks of one host, but not the ranks at the same positions on the other "
                 "hosts. Ranks at the same position forward rows between the hosts. Exclude whole hosts, or "
                 "the same positions on all hosts");
    indices = of_host;
  }
}
uint64_t MoeExchange::mask() const {
  expect_member();
  return shape_.living;
}

void MoeExchange::check_error() const {
  char text[kMoeErrorBytes] = "";
  const verbena_result result = verbena_workspace_get_error(workspace_.handle(), text, sizeof(text));
  if (result != VERBENA_SUCCESS)
    refuse(result, text,
           ". This call and later calls have no results until all ranks have called verbena_moe_reset()");
  if (local_ && local_->notes.status() != 0)
    refuse(VERBENA_REMOTE_ERROR, "an earlier call failed and has no result (status ", local_->notes.status(),
           "). Call verbena_moe_reset() on all ranks to make the exchange usable again");
}

void MoeExchange::expect_member() const {
  if (!local_) refuse(VERBENA_INVALID_USAGE, "this rank is not a member of the team");
}
// If nothing has failed, this takes only one load.
void MoeExchange::expect_in_step() const {
  expect_member();
  if (local_->notes.status() != 0) check_error();
}

void MoeExchange::expect_in_window(const char* name, const void* memory, uint64_t length_bytes) const {
  expect_aligned(name, memory);
  expect_valid(
      find_window_place(context_, memory, length_bytes).has_value(), name,
      " is not in a window, or the address is not symmetric, but the exchange was created with in_windows. "
      "Allocate ",
      length_bytes, " bytes by verbena_window_allocate()");
}

device::MoeHandleLayout MoeExchange::layout() const {
  expect_member();
  return device::MoeHandleLayout::of(shape_);
}

template <typename Arguments>
MoeChoice MoeExchange::choose(device::MoeKind kind, const Arguments& arguments, uint32_t row_bytes) const {
  expect_range("blocks", arguments.blocks, 0, shape_.max_blocks);
  const uint32_t blocks = arguments.blocks == 0 ? shape_.max_blocks : arguments.blocks;
  return choose_moe(shape_, {kind, arguments.tokens, row_bytes, blocks,
                             arguments.grouping != VERBENA_MOE_BY_RANK, arguments.phase == VERBENA_MOE_BOTH});
}

template <typename MoeLaunch>
void MoeExchange::begin_launch(MoeFarLaunch<MoeLaunch>& launch) {
  launch.shape = shape_;
  launch.hosts = hosts_;
  launch.workspace = workspace_.workspace();
  launch.status = local_->notes.status_address();
  launch.programmatic_launch = options_.programmatic_launch;
  launch.Launch::hosts = 1;
}

template <typename Arguments>
uint32_t MoeExchange::begin_phase(const char* name, const Arguments& arguments,
                                  std::optional<Arguments>& sent) const {
  switch (arguments.phase) {
    case VERBENA_MOE_RECEIVE:
    case VERBENA_MOE_RECEIVE_IDS: {
      const bool has_ids = sent && sent->phase == VERBENA_MOE_RECEIVE_IDS;
      if (!sent || (has_ids && arguments.phase == VERBENA_MOE_RECEIVE_IDS))
        refuse(VERBENA_INVALID_USAGE,
               "VERBENA_MOE_RECEIVE was called without an earlier VERBENA_MOE_SEND, so no ", name,
               " is in flight");
      if (list_alike(arguments) != list_alike(*sent) ||
          (!has_ids && list_output(arguments) != list_output(*sent)))
        refuse(VERBENA_INVALID_USAGE, "VERBENA_MOE_RECEIVE of a ", name,
               " has other arguments than its VERBENA_MOE_SEND. Only phase and blocks may differ");
      return has_ids ? device::kMoePlace : device::kMoeReceive;
    }
    case VERBENA_MOE_BOTH:
    case VERBENA_MOE_SEND:
      if (sent) refuse(VERBENA_INVALID_USAGE, "a ", name, " is in flight. Call VERBENA_MOE_RECEIVE first");
      return arguments.phase == VERBENA_MOE_SEND ? device::kMoeSend : device::kMoeSend | device::kMoeReceive;
    default:
      refuse(VERBENA_INVALID_ARGUMENT, "phase ", static_cast<int>(arguments.phase),
             " is unknown. The header verbena/moe.h lists the phases");
  }
}

// Sets the members that describe the rows of the input and of the output.
void MoeExchange::set_rows(const verbena_moe_dispatch_arguments& arguments, device::MoeDispatch& call) const {
  call.row_bytes = arguments.row_bytes;
  call.scale_bytes = arguments.scale_bytes;
  if (arguments.quantisation != VERBENA_OPS_NOT_QUANTISED) {
    expect_valid(arguments.quantisation >= VERBENA_OPS_FP8_BLOCK &&
                     arguments.quantisation <= VERBENA_OPS_FP8_BLOCK_EXPONENT,
                 "quantisation ", static_cast<int>(arguments.quantisation),
                 " is not possible in a dispatch. Use VERBENA_OPS_FP8_BLOCK, VERBENA_OPS_FP8_BLOCK_POWER or "
                 "VERBENA_OPS_FP8_BLOCK_EXPONENT");
    expect_valid(arguments.type == VERBENA_OPS_BFLOAT16 || arguments.type == VERBENA_OPS_FLOAT16,
                 "rows that the dispatch quantises must be float16 or bfloat16");
    expect_valid(arguments.scale_bytes == 0, "scale_bytes is ", arguments.scale_bytes,
                 ", but must be 0 if the dispatch quantises the rows");
    expect_multiple("row_bytes of rows that the dispatch quantises", arguments.row_bytes,
                    2 * kMoePacketBytes);
    call.row_bytes /= 2;
    call.scale_bytes = static_cast<uint32_t>(sizeof(float) * device::moe_divide_up(call.row_bytes, 128U));
    call.scale_format = static_cast<device::MoeScales>(arguments.quantisation - VERBENA_OPS_FP8_BLOCK);
  } else {
    expect_valid(arguments.column_scales == 0,
                 "column_scales works only if the dispatch quantises the rows, because a dispatch does not "
                 "rearrange the caller's scales");
  }
  call.output_scale_bytes = call.scale_format == device::MoeScales::kExponents
                                ? 4 * device::moe_divide_up(call.scale_bytes, kMoePacketBytes)
                                : call.scale_bytes;
  expect_multiple("row_bytes", call.row_bytes, kMoePacketBytes);
  expect_range("row_bytes of the output", call.row_bytes, kMoePacketBytes,
               options_.max_row_bytes == 0 ? 2 * options_.hidden : options_.max_row_bytes);
  expect_range("scale_bytes of the output", call.scale_bytes, 0, options_.max_scale_bytes);
}

// Sets the members that describe the groups of the output.
void MoeExchange::set_groups(const verbena_moe_dispatch_arguments& arguments,
                             device::MoeDispatch& call) const {
  expect_valid(arguments.grouping >= VERBENA_MOE_BY_RANK && arguments.grouping <= VERBENA_MOE_RAGGED,
               "grouping ", static_cast<int>(arguments.grouping),
               " is unknown. The header verbena/moe.h lists the groupings");
  call.grouping = static_cast<device::MoeGrouping>(arguments.grouping);
  expect_range("alignment", arguments.alignment, 0, device::kMoeMaxAlignment);
  call.alignment = std::max(1U, arguments.alignment);
  const bool is_ragged = arguments.grouping == VERBENA_MOE_RAGGED;
  call.output_rows = is_ragged ? arguments.output_rows : find_max_rows(shape_, arguments.grouping, 1);
  if (arguments.column_scales != 0)
    call.column_rows = arguments.grouping == VERBENA_MOE_BY_RANK     ? shape_.max_tokens
                       : arguments.grouping == VERBENA_MOE_BY_EXPERT ? shape_.ranks * shape_.max_tokens
                                                                     : call.output_rows;
  if (arguments.grouping == VERBENA_MOE_BY_RANK) {
    expect_valid(arguments.phase != VERBENA_MOE_RECEIVE_IDS,
                 "VERBENA_MOE_RECEIVE_IDS works only in a dispatch that groups rows by expert");
    return;
  }
  expect_range("the number of a rank's experts, if rows are grouped by expert,", shape_.local_experts, 1,
               device::kMoeMaxGroups);
  call.row_sources = arguments.row_sources;
  call.row_experts = arguments.row_experts;
  for (const void* const words : {arguments.row_sources, arguments.row_experts})
    if (words != nullptr) expect_aligned("row_sources or row_experts", words, sizeof(int32_t));
}

void MoeExchange::dispatch(const verbena_moe_dispatch_arguments& arguments, CUstream stream) {
  expect_in_step();
  expect_range("tokens", arguments.tokens, 0, shape_.max_tokens);
  expect_valid(arguments.id_bits == 32 || arguments.id_bits == 64, "id_bits is ", arguments.id_bits,
               "; it must be 32 or 64");
  expect_aligned("handle", arguments.handle);
  MoeFarDispatchLaunch launch{};
  begin_launch(launch);
  device::MoeDispatch& call = launch.call;
  set_rows(arguments, call);
  set_groups(arguments, call);
  if (call.output_rows != 0) {
    expect_aligned("output", arguments.output);
    // The scales of a cast are stored as words, so they need the alignment of a word.
    if (call.scale_bytes != 0)
      expect_aligned("output_scales", arguments.output_scales,
                     arguments.quantisation == VERBENA_OPS_NOT_QUANTISED ? 1 : sizeof(float));
  }
  call.row_stride = arguments.row_stride == 0 ? arguments.row_bytes : arguments.row_stride;
  if (arguments.tokens != 0) {
    expect_aligned("rows", arguments.rows);
    expect_multiple("row_stride", call.row_stride, kMoePacketBytes);
    expect_aligned("ids", arguments.ids, arguments.id_bits / 8);
    if (arguments.weights != nullptr) expect_aligned("weights", arguments.weights, sizeof(float));
    expect_valid(arguments.scale_bytes == 0 || arguments.scales != nullptr, "scales is NULL");
  }
  call.rows = arguments.rows;
  call.scales = arguments.scales;
  call.scale_stride = arguments.scale_stride == 0 ? arguments.scale_bytes : arguments.scale_stride;
  call.ids = arguments.ids;
  call.id_stride = arguments.id_stride == 0 ? shape_.top_k : arguments.id_stride;
  call.weights = arguments.weights;
  call.tokens = arguments.tokens;
  call.has_long_ids = arguments.id_bits == 64 ? 1 : 0;
  call.output = arguments.output;
  call.output_scales = arguments.output_scales;
  call.handle = static_cast<char*>(arguments.handle);
  call.layout = layout();
  if (shape_.in_windows != 0) {
    expect_valid(arguments.grouping == VERBENA_MOE_BY_RANK && arguments.phase == VERBENA_MOE_BOTH,
                 "an exchange that was created with in_windows takes only VERBENA_MOE_BY_RANK and "
                 "VERBENA_MOE_BOTH");
    expect_in_window("output", call.output, uint64_t{call.output_rows} * call.row_bytes);
    if (call.scale_bytes != 0)
      expect_in_window("output_scales", call.output_scales,
                       uint64_t{call.output_rows} * call.output_scale_bytes);
    expect_in_window("handle", call.handle, call.layout.bytes);
  }
  const MoeChoice choice = choose(device::MoeKind::kDispatch, arguments, call.row_bytes);
  call.phases = begin_phase("dispatch", arguments, sent_dispatch_);
  call.parts = choice.parts;
  if (arguments.grouping != VERBENA_MOE_BY_RANK && is_last(arguments.phase)) call.phases |= device::kMoePlace;
  local_->kernels->launch_moe(choice.family, choice.grid, launch, arguments.quantisation, arguments.type,
                              stream);
  end_phase(arguments, sent_dispatch_);
}

void MoeExchange::combine(const verbena_moe_combine_arguments& arguments, CUstream stream) {
  expect_in_step();
  expect_range("tokens", arguments.tokens, 0, shape_.max_tokens);
  expect_valid(arguments.order >= VERBENA_MOE_ROWS && arguments.order <= VERBENA_MOE_EXACT,
               "order is unknown. The header verbena/moe.h lists the orders");
  expect_valid(arguments.order != VERBENA_MOE_EXACT || options_.exact != 0,
               "VERBENA_MOE_EXACT needs an exchange that was created with verbena_moe_options::exact and "
               "whose ranks are all on one host");
  expect_valid(arguments.type == VERBENA_OPS_BFLOAT16 || arguments.type == VERBENA_OPS_FLOAT16,
               "a combine takes only rows of float16 or bfloat16");
  if (arguments.weights != nullptr) {
    expect_valid(arguments.order == VERBENA_MOE_EXACT, "a combine takes weights only with VERBENA_MOE_EXACT");
    expect_aligned("weights", arguments.weights, sizeof(float));
  }
  // `rows` may be null for a ragged output, because a ragged output may have no rows.
  if (arguments.grouping != VERBENA_MOE_RAGGED || arguments.rows != nullptr)
    expect_aligned("rows", arguments.rows);
  expect_aligned("handle", arguments.handle);
  if (arguments.tokens != 0) expect_aligned("output", arguments.output);
  if (shape_.in_windows != 0) {
    expect_valid(arguments.order == VERBENA_MOE_ROWS && arguments.grouping == VERBENA_MOE_BY_RANK &&
                     arguments.phase == VERBENA_MOE_BOTH,
                 "an exchange that was created with in_windows takes only VERBENA_MOE_ROWS, "
                 "VERBENA_MOE_BY_RANK and VERBENA_MOE_BOTH");
    expect_in_window("rows", arguments.rows,
                     uint64_t{2} * shape_.ranks * shape_.max_tokens * options_.hidden);
  }
  MoeFarCombineLaunch launch{};
  begin_launch(launch);
  const uint32_t row_bytes = 2 * options_.hidden;
  const MoeChoice choice = choose(device::MoeKind::kCombine, arguments, row_bytes);
  launch.call = {arguments.rows,
                 row_bytes,
                 arguments.tokens,
                 arguments.output,
                 static_cast<const char*>(arguments.handle),
                 begin_phase("combine", arguments, sent_combine_),
                 choice.parts,
                 layout(),
                 static_cast<device::MoeGrouping>(arguments.grouping),
                 arguments.weights};
  local_->kernels->launch_moe(choice.family, choice.grid, launch,
                              static_cast<device::MoeOrder>(arguments.order), arguments.type, stream);
  end_phase(arguments, sent_combine_);
}

}  // namespace verbena::ops
