// NCCL's network-plugin ABI, versions 7 (NCCL 2.19) to 12 (NCCL 2.30): plain data and constants. The function
// tables are in abi_tables.h. NCCL fixes the layouts for x86-64 and arm64 Linux (LP64, little endian); the
// assertions below check them. Members keep NCCL's words in this project's spelling; a comment gives NCCL's
// type. This file has no code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::abi {

// ncclResult_t. Every function of a table returns one of these.
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,  // known to NCCL 2.30 and later; older releases print "unknown result code"
};

// ncclDebugLogLevel.
enum LogLevel : int {
  kLogNone = 0,
  kLogVersion = 1,
  kLogWarn = 2,
  kLogInfo = 3,
  kLogAbort = 4,
  kLogTrace = 5,
};

// Bits of the logger's `flags`: which NCCL_DEBUG_SUBSYS setting shows the line.
inline constexpr unsigned long kSubsystemInit = 0x1;
inline constexpr unsigned long kSubsystemNet = 0x10;
inline constexpr unsigned long kSubsystemEnv = 0x80;
inline constexpr unsigned long kSubsystemProxy = 0x400;
inline constexpr unsigned long kSubsystemReg = 0x2000;
inline constexpr unsigned long kSubsystemAll = ~0ul;

// ncclDebugLogger_t. printf-like. NCCL shows the last component of `file`, or the whole, depending on its
// build.
using DebugLogger = void (*)(LogLevel level, unsigned long flags, const char* file, int line,
                             const char* format, ...);

enum ProfilerEventType : int {
  kProfilerStart = 0,
  kProfilerStop = 1,
  kProfilerUpdate = 2,
  kProfilerUpdateAndStop = 3,
};
// ncclProfilerCallback_t. May be null. Must not be called with a null `phandle`, because NCCL dereferences
// it. Messages of NCCL's bootstrap have a null `phandle`.
using ProfilerCallback = Result (*)(void** event_handle, int type, void* phandle, int64_t plugin_id,
                                    void* extra);

// The type of a network event: the kind of plugin in the upper 48 bits, and the version. NCCL passes it to
// its profiler plugin. This plugin reports the events of NCCL's own IB transport.
inline constexpr int64_t kNetEventsOfIb = 1 << 16 | 1;
struct NetIbEvent {
  static constexpr uint8_t kQueuePair = 1;
  uint8_t type = kQueuePair;
  alignas(8) int device = 0;
  uint64_t work_request = 0;
  int opcode = 0;  // ibv_wr_opcode; -1: a receive
  int qp_number = 0;
  size_t length_bytes = 0;
};
static_assert(sizeof(NetIbEvent) == 40 && offsetof(NetIbEvent, device) == 8);
static_assert(offsetof(NetIbEvent, opcode) == 24 && offsetof(NetIbEvent, length_bytes) == 32);

inline constexpr size_t kHandleBytes = 128;  // what listen fills and connect reads; writable between polls
// Number of requests that one communicator must support at a time.
inline constexpr int kMaxRequests = 32;
inline constexpr int kMaxTestSizes = 64;                 // length of the array `test` may fill for a receive
inline constexpr size_t kMaxReportedBytes = 0x7fffffff;  // largest value of an element of that array, an int
inline constexpr int kPtrHost = 0x1;                     // values of regMr's `type`, and bits of ptr_support
inline constexpr int kPtrCuda = 0x2;
inline constexpr int kPtrDmabuf = 0x4;                  // bit of ptr_support only: regMrDmaBuf may be called
inline constexpr int64_t kMaxP2pBytes = 1ll << 40;      // largest legal max_p2p_bytes (1 TiB)
inline constexpr int64_t kMaxMessageBytes = 1ll << 30;  // largest message NCCL sends (1 GiB)
inline constexpr int kUndefined = -1;                   // rail and plane ids, traffic class, attributes

// On entry to irecv `*request` equals this for LL and LL128 (table v9 and later, NCCL 2.24.3 and later). The
// receive's completion then need not be reported, and its bytes must arrive in `data` itself. Any other value
// on entry is stale.
inline constexpr uintptr_t kOptionalRecvCompletion = 0x1;

// Bits of NetAttr. `op` counts in ncclFunc_t's order, `algo` and `proto` in NCCL's.
inline constexpr uint32_t kProtoLl = 1u << 0;
inline constexpr uint32_t kProtoLl128 = 1u << 1;
inline constexpr uint32_t kProtoSimple = 1u << 2;
inline constexpr uint32_t kAlgoPat = 1u << 6;
inline constexpr uint32_t kOpsPointToPoint = 0x7c0;  // Send, Recv, AlltoAll, Scatter, Gather
inline constexpr uint32_t kAttrAny = 0xffffffffu;

enum NetDeviceType : int {
  kDeviceHost = 0,
  kDeviceUnpack = 1,
  kDeviceGinProxy = 2,
  kDeviceGinGdaki = 3,
  kDeviceGinGpi = 4,
};
inline constexpr int kDeviceInvalidVersion = 0;
inline constexpr int kDeviceUnpackVersion = 0x7;

// ncclNetDeviceHandle_v7_t to _v12_t. NCCL allocates it, zeroed but for type and version, and never frees it;
// accept fills it.
struct NetDeviceHandle {
  NetDeviceType type;
  int version;
  void* handle;  // dereferenced by the GPU: verbena::UnpackDeviceHandle (verbena/unpack_abi.h); the plugin
                 // frees it
  size_t size;   // bytes behind `handle`; informational
  int needs_proxy_progress;  // 1; otherwise NCCL never calls irecv on this communicator
};
static_assert(sizeof(NetDeviceHandle) == 32 && offsetof(NetDeviceHandle, version) == 4);
static_assert(offsetof(NetDeviceHandle, handle) == 8 && offsetof(NetDeviceHandle, size) == 16);
static_assert(offsetof(NetDeviceHandle, needs_proxy_progress) == 24);

// ncclNetVDeviceProps_v9_t to _v12_t: the physical devices that one virtual device joins.
template <int kMaxDevices>
struct VDeviceProps {
  static constexpr int kCapacity = kMaxDevices;
  int ndevs;
  int devs[kMaxDevices];
};
using ncclNetVDeviceProps_v9_t = VDeviceProps<4>;   // v9..v11
using ncclNetVDeviceProps_v12_t = VDeviceProps<8>;  // v12
static_assert(sizeof(ncclNetVDeviceProps_v9_t) == 20 && offsetof(ncclNetVDeviceProps_v9_t, devs) == 4);
static_assert(sizeof(ncclNetVDeviceProps_v12_t) == 36 && offsetof(ncclNetVDeviceProps_v12_t, devs) == 4);

// ncclNetCommConfig_v10_t to _v12_t.
struct NetCommConfig {
  int traffic_class;  // kUndefined: not set by the user
};
static_assert(sizeof(NetCommConfig) == 4);

struct CommAttr {
  int32_t max_concurrent_peers;
  int32_t min_concurrent_peers;
  int32_t max_flows_per_peer;
  int32_t min_flows_per_peer;
};
// ncclNetAttr_v11_t, ncclNetAttr_v12_t: hints about the next calls on this thread.
struct NetAttr {
  CommAttr send;
  CommAttr recv;
  uint32_t op;
  uint32_t algo;
  uint32_t proto;
};
static_assert(sizeof(CommAttr) == 16 && offsetof(CommAttr, min_flows_per_peer) == 12);
static_assert(sizeof(NetAttr) == 44 && offsetof(NetAttr, recv) == 16);
static_assert(offsetof(NetAttr, op) == 32 && offsetof(NetAttr, algo) == 36 && offsetof(NetAttr, proto) == 40);

// getProperties passes uninitialised memory, so every member must be written. Strings stay valid while the
// library is loaded. Bandwidth in Mb/s, latency in us.
struct ncclNetProperties_v7_t {  // ncclNetProperties_v7_t
  char* name;
  char* pci_path;  // real path in /sys; null: attached to the first CPU
  uint64_t guid;   // equal guids share one adapter's bandwidth
  int ptr_support;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  NetDeviceType net_device_type;
  int net_device_version;
};
static_assert(sizeof(ncclNetProperties_v7_t) == 56 && offsetof(ncclNetProperties_v7_t, pci_path) == 8);
static_assert(offsetof(ncclNetProperties_v7_t, guid) == 16 &&
              offsetof(ncclNetProperties_v7_t, ptr_support) == 24);
static_assert(offsetof(ncclNetProperties_v7_t, speed_mbps) == 28 &&
              offsetof(ncclNetProperties_v7_t, port) == 32);
static_assert(offsetof(ncclNetProperties_v7_t, latency_us) == 36 &&
              offsetof(ncclNetProperties_v7_t, max_comms) == 40);
static_assert(offsetof(ncclNetProperties_v7_t, max_recvs) == 44 &&
              offsetof(ncclNetProperties_v7_t, net_device_type) == 48);
static_assert(offsetof(ncclNetProperties_v7_t, net_device_version) == 52);

struct ncclNetProperties_v8_t {  // ncclNetProperties_v8_t
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  NetDeviceType net_device_type;
  int net_device_version;
};
static_assert(sizeof(ncclNetProperties_v8_t) == 64 && offsetof(ncclNetProperties_v8_t, ptr_support) == 24);
static_assert(offsetof(ncclNetProperties_v8_t, reg_is_global) == 28 &&
              offsetof(ncclNetProperties_v8_t, speed_mbps) == 32);
static_assert(offsetof(ncclNetProperties_v8_t, port) == 36 &&
              offsetof(ncclNetProperties_v8_t, latency_us) == 40);
static_assert(offsetof(ncclNetProperties_v8_t, max_comms) == 44 &&
              offsetof(ncclNetProperties_v8_t, max_recvs) == 48);
static_assert(offsetof(ncclNetProperties_v8_t, net_device_type) == 52 &&
              offsetof(ncclNetProperties_v8_t, net_device_version) == 56);

template <typename VDevicePropsT>
struct NetPropertiesWithVDevices {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;  // 0: registrations belong to one communicator
  int force_flush;    // 1: NCCL calls iflush even if it assumes that the hardware orders writes
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  NetDeviceType net_device_type;
  int net_device_version;
  VDevicePropsT vprops;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
};
// ncclNetProperties_v9_t, ncclNetProperties_v10_t
using ncclNetProperties_v9_t = NetPropertiesWithVDevices<ncclNetVDeviceProps_v9_t>;
using ncclNetProperties_v10_t = ncclNetProperties_v9_t;
static_assert(sizeof(ncclNetProperties_v9_t) == 104 && offsetof(ncclNetProperties_v9_t, ptr_support) == 24);
static_assert(offsetof(ncclNetProperties_v9_t, reg_is_global) == 28 &&
              offsetof(ncclNetProperties_v9_t, force_flush) == 32);
static_assert(offsetof(ncclNetProperties_v9_t, speed_mbps) == 36 &&
              offsetof(ncclNetProperties_v9_t, port) == 40);
static_assert(offsetof(ncclNetProperties_v9_t, latency_us) == 44 &&
              offsetof(ncclNetProperties_v9_t, max_comms) == 48);
static_assert(offsetof(ncclNetProperties_v9_t, max_recvs) == 52 &&
              offsetof(ncclNetProperties_v9_t, net_device_type) == 56);
static_assert(offsetof(ncclNetProperties_v9_t, net_device_version) == 60 &&
              offsetof(ncclNetProperties_v9_t, vprops) == 64);
static_assert(offsetof(ncclNetProperties_v9_t, max_p2p_bytes) == 88 &&
              offsetof(ncclNetProperties_v9_t, max_coll_bytes) == 96);

// The members that a version adds lie behind those of the version before it: a base has no padding at its
// end.
struct ncclNetProperties_v11_t : ncclNetProperties_v9_t {  // ncclNetProperties_v11_t
  int max_multi_request_size;
};
static_assert(sizeof(ncclNetProperties_v11_t) == sizeof(ncclNetProperties_v9_t) + 8);

struct ncclNetProperties_v12_t : NetPropertiesWithVDevices<ncclNetVDeviceProps_v12_t> {
  int max_multi_request_size;
  int16_t rail_id;   // kUndefined: not known
  int16_t plane_id;  // kUndefined: not known
};
static_assert(offsetof(NetPropertiesWithVDevices<ncclNetVDeviceProps_v12_t>, vprops) == 64);
static_assert(offsetof(NetPropertiesWithVDevices<ncclNetVDeviceProps_v12_t>, max_p2p_bytes) == 104);
static_assert(sizeof(NetPropertiesWithVDevices<ncclNetVDeviceProps_v12_t>) == 120 &&
              sizeof(ncclNetProperties_v12_t) == 128);

}  // namespace verbena::abi
