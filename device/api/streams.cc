// Implements the calls of verbena.h on streams.
#include "base/log.h"
#include "device/api/objects.h"
#include "device/symm/stream.h"

using namespace verbena;
using symm::StreamCall;

namespace {

verbena_result enqueue(const verbena_team* team, const StreamCall& call, void* stream) {
  return api::guard([&]() -> base::Outcome {
    if (team == nullptr)
      return base::fail(base::Status::kInvalidArgument, "api: a call on a stream: team is NULL");
    symm::Context& context = *team->context->context;
    if (!context.process().is_here()) return api::refuse_in_child();
    return context.enqueue(*team->team, call, stream);
  });
}

verbena_result copy(const verbena_team* team, StreamCall::Kind kind, void* destination, const void* source,
                    size_t length_bytes, uint32_t peer, void* stream) {
  return enqueue(team,
                 {.kind = kind,
                  .peer = static_cast<int32_t>(peer),
                  .destination = reinterpret_cast<uint64_t>(destination),
                  .source = reinterpret_cast<uint64_t>(source),
                  .length_bytes = length_bytes},
                 stream);
}

}  // namespace

extern "C" {

verbena_result verbena_barrier_on_stream(const verbena_team* team, uint32_t barrier, void* stream) {
  return enqueue(team, {.kind = StreamCall::Kind::kBarrier, .number = barrier}, stream);
}

verbena_result verbena_signal_on_stream(const verbena_team* team, uint32_t signal, uint32_t peer,
                                        uint64_t value, int operation, void* stream) {
  return enqueue(team,
                 {.kind = StreamCall::Kind::kSignal,
                  .number = signal,
                  .peer = static_cast<int32_t>(peer),
                  .operation = static_cast<uint32_t>(operation),
                  .value = value},
                 stream);
}

verbena_result verbena_wait_on_stream(const verbena_team* team, uint32_t signal, int compare, int64_t value,
                                      void* stream) {
  return enqueue(team,
                 {.kind = StreamCall::Kind::kWait,
                  .number = signal,
                  .operation = static_cast<uint32_t>(compare),
                  .value = static_cast<uint64_t>(value)},
                 stream);
}

verbena_result verbena_put_on_stream(const verbena_team* team, void* destination, const void* source,
                                     size_t length_bytes, uint32_t peer, void* stream) {
  return copy(team, StreamCall::Kind::kPut, destination, source, length_bytes, peer, stream);
}

verbena_result verbena_put_pieces_on_stream(const verbena_team* team, const verbena_piece* pieces,
                                            size_t count, uint32_t peer, void* stream) {
  return api::guard([&]() -> base::Outcome {
    if (team == nullptr || (pieces == nullptr && count != 0))
      return base::fail(base::Status::kInvalidArgument, "api: a call on a stream: team or pieces is NULL");
    symm::Context& context = *team->context->context;
    if (!context.process().is_here()) return api::refuse_in_child();
    static_assert(sizeof(verbena_piece) == sizeof(SymmPiece));
    return context.enqueue_pieces(*team->team, {reinterpret_cast<const SymmPiece*>(pieces), count}, peer,
                                  stream);
  });
}

verbena_result verbena_get_on_stream(const verbena_team* team, void* destination, const void* source,
                                     size_t length_bytes, uint32_t peer, void* stream) {
  return copy(team, StreamCall::Kind::kGet, destination, source, length_bytes, peer, stream);
}

verbena_result verbena_quiet_on_stream(const verbena_team* team, void* stream) {
  return enqueue(team, {.kind = StreamCall::Kind::kQuiet}, stream);
}

}  // extern "C"
