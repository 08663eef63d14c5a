#include "common/rma_plugin.h"

#include <dlfcn.h>

namespace verbena::tools {

namespace {

template <typename Table>
class RmaAdapter final : public RmaPlugin {
  // The features of each version's table.
  static constexpr bool kHasContexts = requires(Table table) { table.iget; };
  static constexpr bool kHasGinHandle =
      requires(Table table, void* p) { table.reg_mr_sym(p, p, size_t{}, 0, uint64_t{}, &p, &p); };
  static constexpr bool kHasFlags = requires(Table table, void* p) {
    table.iput(p, 0, uint64_t{}, p, size_t{}, uint64_t{}, p, 0U, 0U, &p);
  };
  static constexpr bool kSaysStrong = requires(Table table, void* p) {
    table.iput_signal(p, 0, uint64_t{}, p, size_t{}, uint64_t{}, p, 0U, uint64_t{}, p, uint64_t{}, 0U, true,
                      &p);
  };

 public:
  RmaAdapter(const Table& table, std::string symbol) : table_(table), symbol_(std::move(symbol)) {}

  const char* symbol() const override { return symbol_.c_str(); }
  const char* name() const override { return table_.name; }
  bool has_contexts() const override { return kHasContexts; }
  bool has_rank_stride() const override { return kHasContexts && !kHasGinHandle; }

  abi::Result init(void** context, uint64_t communicator, abi::DebugLogger logger) override {
    return table_.init(context, communicator, logger);
  }
  abi::Result finalize(void* context) override { return table_.finalize(context); }
  abi::Result devices(int* count) override { return table_.devices(count); }
  abi::Result get_properties(int device, abi::ncclNetProperties_v12_t* properties) override {
    typename Table::Properties own;
    const abi::Result result = table_.get_properties(device, &own);
    if (result != abi::kSuccess) return result;
    properties->name = own.name;
    properties->pci_path = own.pci_path;
    properties->guid = own.guid;
    properties->ptr_support = own.ptr_support;
    properties->reg_is_global = own.reg_is_global;
    properties->force_flush = own.force_flush;
    properties->speed_mbps = own.speed_mbps;
    properties->port = own.port;
    properties->max_comms = own.max_comms;
    properties->max_recvs = own.max_recvs;
    properties->net_device_type = own.net_device_type;
    properties->net_device_version = own.net_device_version;
    properties->vprops.ndevs = own.vprops.ndevs;
    properties->vprops.devs[0] = own.vprops.devs[0];
    properties->max_p2p_bytes = own.max_p2p_bytes;
    return result;
  }
  abi::Result listen(void* context, int device, void* handle, void** listen_comm) override {
    return table_.listen(context, device, handle, listen_comm);
  }
  abi::Result connect(void* context, void** handles, int count, int rank, void* listen_comm,
                      void** communicator) override {
    return table_.connect(context, handles, count, rank, listen_comm, communicator);
  }
  abi::Result close_listen(void* listen_comm) override { return table_.close_listen(listen_comm); }
  abi::Result create_context(void* communicator, int contexts, int rank_stride, void** context) override {
    if constexpr (!kHasContexts) {
      abi::NetDeviceHandle* handle = nullptr;
      return table_.create_context(communicator, 1, 1, context, &handle);
    } else if constexpr (kHasGinHandle) {
      abi::GinConfig_v13 config{0, 0, contexts, 0, INT32_MIN};
      return table_.create_context(communicator, &config, context, nullptr);
    } else {
      abi::RmaConfig config{contexts, INT32_MIN, rank_stride};
      return table_.create_context(communicator, &config, context);
    }
  }
  abi::Result destroy_context(void* context) override { return table_.destroy_context(context); }
  RmaRegistration register_memory(void* communicator, void* data, size_t bytes, int type) override {
    RmaRegistration made{};
    if constexpr (kHasGinHandle) {
      made.result = table_.reg_mr_sym(communicator, data, bytes, type, 0, &made.mhandle, &made.gin_handle);
    } else {
      made.result = table_.reg_mr_sym(communicator, data, bytes, type, 0, &made.mhandle);
      made.gin_handle = made.mhandle;
    }
    return made;
  }
  RmaRegistration register_dmabuf(void* communicator, void* data, size_t bytes, int type, uint64_t offset,
                                  int fd) override {
    RmaRegistration made{};
    if constexpr (kHasGinHandle) {
      made.result = table_.reg_mr_sym_dmabuf(communicator, data, bytes, type, offset, fd, 0, &made.mhandle,
                                             &made.gin_handle);
    } else {
      made.result = table_.reg_mr_sym_dmabuf(communicator, data, bytes, type, offset, fd, 0, &made.mhandle);
      made.gin_handle = made.mhandle;
    }
    return made;
  }
  abi::Result deregister(void* communicator, void* mhandle) override {
    return table_.dereg_mr_sym(communicator, mhandle);
  }
  abi::Result close(void* communicator) override { return table_.close_coll(communicator); }

  abi::Result put(const RmaTarget& target, const RmaCopy& copy, void** request) override {
    if constexpr (!kHasContexts) {
      return table_.iput(target.communicator, copy.local_offset, copy.local, copy.bytes, copy.remote_offset,
                         copy.remote, copy.rank, request);
    } else if constexpr (kHasFlags) {
      return table_.iput(target.context, target.index, copy.local_offset, copy.local, copy.bytes,
                         copy.remote_offset, copy.remote, copy.rank, flags_of(copy), request);
    } else {
      return table_.iput(target.context, target.index, copy.local_offset, copy.local, copy.bytes,
                         copy.remote_offset, copy.remote, copy.rank, request);
    }
  }
  abi::Result put_signal(const RmaTarget& target, const RmaCopy& copy, const RmaAdd& add,
                         void** request) override {
    if constexpr (!kHasContexts) {
      return table_.iput_signal(target.communicator, copy.local_offset, copy.local, copy.bytes,
                                copy.remote_offset, copy.remote, copy.rank, add.offset, add.memory, add.value,
                                add.op, request);
    } else if constexpr (kHasFlags) {
      return table_.iput_signal(target.context, target.index, copy.local_offset, copy.local, copy.bytes,
                                copy.remote_offset, copy.remote, copy.rank, add.offset, add.memory, add.value,
                                add.op, add.is_strong, flags_of(copy), request);
    } else if constexpr (kSaysStrong) {
      return table_.iput_signal(target.context, target.index, copy.local_offset, copy.local, copy.bytes,
                                copy.remote_offset, copy.remote, copy.rank, add.offset, add.memory, add.value,
                                add.op, add.is_strong, request);
    } else {
      return table_.iput_signal(target.context, target.index, copy.local_offset, copy.local, copy.bytes,
                                copy.remote_offset, copy.remote, copy.rank, add.offset, add.memory, add.value,
                                add.op, request);
    }
  }
  abi::Result get(const RmaTarget& target, const RmaCopy& copy, void** request) override {
    if constexpr (!kHasContexts) {
      return abi::kInvalidUsage;
    } else if constexpr (kHasFlags) {
      return table_.iget(target.context, target.index, copy.remote_offset, copy.remote, copy.bytes,
                         copy.local_offset, copy.local, copy.rank, flags_of(copy), request);
    } else {
      return table_.iget(target.context, target.index, copy.remote_offset, copy.remote, copy.bytes,
                         copy.local_offset, copy.local, copy.rank, request);
    }
  }
  abi::Result flush(const RmaTarget& target, void* mhandle, uint32_t rank, void** request) override {
    if constexpr (kHasContexts) return table_.iflush(target.context, target.index, mhandle, rank, request);
    return abi::kInvalidUsage;
  }
  abi::Result test(const RmaTarget& target, void* request, int* done) override {
    return table_.test(target.communicator, request, done);
  }
  abi::Result progress(const RmaTarget& target) override { return table_.progress(first_of(target)); }
  abi::Result query_last_error(const RmaTarget& target, bool* has_error) override {
    return table_.query_last_error(first_of(target), has_error);
  }

 private:
  static void* first_of(const RmaTarget& target) {
    return kHasContexts ? target.context : target.communicator;
  }
  static uint32_t flags_of(const RmaCopy& copy) { return copy.is_hinted ? abi::kAggregateRequests : 0; }

  const Table& table_;
  const std::string symbol_;
};

}  // namespace

std::vector<std::string> list_rma_symbols() {
  return {"ncclGinPlugin_v11", "ncclGinPlugin_v13", "ncclRmaPlugin_v14", "ncclRmaPlugin_v15",
          "ncclRmaPlugin_v16"};
}

std::unique_ptr<RmaPlugin> adapt_rma_table(void* library, const std::string& symbol) {
  const void* const table = dlsym(library, symbol.c_str());
  if (table == nullptr) return nullptr;
  const auto adapt = [&](auto* none) -> std::unique_ptr<RmaPlugin> {
    using RmaTable = std::remove_pointer_t<decltype(none)>;
    return std::make_unique<RmaAdapter<RmaTable>>(*static_cast<const RmaTable*>(table), symbol);
  };
  if (symbol == "ncclGinPlugin_v11") return adapt(static_cast<abi::ncclGin_v11_t*>(nullptr));
  if (symbol == "ncclGinPlugin_v13") return adapt(static_cast<abi::ncclGin_v13_t*>(nullptr));
  if (symbol == "ncclRmaPlugin_v14") return adapt(static_cast<abi::ncclRma_v14_t*>(nullptr));
  if (symbol == "ncclRmaPlugin_v15") return adapt(static_cast<abi::ncclRma_v15_t*>(nullptr));
  return adapt(static_cast<abi::ncclRma_v16_t*>(nullptr));
}

}  // namespace verbena::tools
