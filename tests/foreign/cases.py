"""What is run: programs that others wrote, as their packages in Debian or on PyPI ship them, over the software RDMA device.

A pair is a server and a client of one program. In commands {port} is a port, {programs} our folder of that name, {folder} one
for files of the case, {bin} the build's programs, {python} the Python that has what only PyPI has.
"""

import glob
from dataclasses import dataclass, field, replace

DEVICE = "softverbs0"
GID = 1  # the index of the device's IPv4 GID
# Some programs want to be told a port. Any is free in a network namespace of one's own.
PORT = 18515


@dataclass(frozen=True)
class Case:
    name: str
    command: str
    client: str = ""  # what the client's command adds; without it, one process runs alone
    expect: str = ""  # regular expression that the (client's) output must match
    limit_s: int = 300
    is_wrapped: bool = False  # by softverbs-run, as it looks for device nodes, or brings a libibverbs of another name
    build: str = ""  # makes the program
    needs: tuple = ()  # programs, files, or PYTHON:module; without one of them the case is skipped, and named
    users: int = 0  # processes that have to load our library; 0: each that is started
    environment: dict = field(default_factory=dict)


def pingpong(name, options, expect=r"bytes in .* seconds"):
    kind = name.split()[0]
    return Case(f"ibv_{name}", f"ibv_{kind}_pingpong -d {DEVICE} -g {GID} -p {{port}} {options}", "127.0.0.1", expect)


def perftest(name, program, options="", expect="", limit_s=300):
    common = f"{program} -d {DEVICE} -x {GID} -p {{port}} -F {options}"
    # The name of the device stands above the results of every run.
    return Case(name, common, "127.0.0.1", expect or rf"(?s)Device +: {DEVICE}\n.*#bytes.*\n +\d+ +\d+ ", limit_s)


def up_to(bytes_):
    return rf"(?s)Device +: {DEVICE}\n.*#bytes.*\n +2 +\d+ .*\n +{bytes_} +\d+ "


def ucx(name, transport, test, options):
    kind = "ucp" if test.startswith(("tag_", "ucp_", "stream_")) else "uct"
    place = f"-d {DEVICE}:1 -x rc_verbs" if kind == "uct" else ""
    return Case(
        name,
        f"ucx_perftest -p {{port}} {place} -t {test} {options}",
        "127.0.0.1",
        r"Final: +\d+",
        is_wrapped=True,
        environment={**UCX_SETTINGS, "UCX_TLS": transport},
    )


def mpi(name, kind, launch, ranks, has_windows=False, **environment):
    """Our program of tests/foreign/programs, by an MPI."""
    return Case(
        name,
        f"{launch} -n {ranks} {{folder}}/mpi_check {'windows' if has_windows else ''}",
        expect=rf"\b{ranks} ranks, 0 wrong",
        is_wrapped=True,
        build=f"mpicc.{kind} -O1 -w -o mpi_check {{programs}}/mpi_check.c",
        needs=(f"mpicc.{kind}", f"mpirun.{kind}"),
        users=ranks,
        environment={**UCX_SETTINGS, **environment},
    )


UCX_SETTINGS = {"UCX_NET_DEVICES": f"{DEVICE}:1", "UCX_IB_GID_INDEX": str(GID), "UCX_LOG_LEVEL": "error"}
OPEN_MPI_SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OPEN_MPI = "mpirun.openmpi --oversubscribe --mca pml ucx --mca osc ucx --mca btl self"

DEVICES = [
    Case("ibv_devices", "ibv_devices", expect=rf"{DEVICE}\s+[0-9a-f]{{16}}"),
    Case("ibv_devinfo", f"ibv_devinfo -v -d {DEVICE}", expect=rf"(?s)hca_id:\s+{DEVICE}.*PORT_ACTIVE.*GID\[ +1\]"),
    Case("ibv_devinfo_list", "ibv_devinfo -l", expect=rf"1 HCA found:\s+{DEVICE}"),
]

PINGPONGS = [
    pingpong("rc polling", "-n 1000"),
    pingpong("rc events", "-e -n 1000"),
    pingpong("rc 1 byte", "-s 1 -c"),
    pingpong("rc 64 KiB checked", "-s 65536 -n 500 -c"),
    pingpong("rc 1 MiB checked", "-s 1048576 -n 100 -c -r 20"),
    pingpong("rc mtu 4096", "-m 4096 -n 500 -c"),
    pingpong("rc ibv_wr posts", "-N -n 1000 -c"),
    pingpong("rc time stamps", "-t -n 500", r"Average receive completion clock cycles"),
    pingpong("rc on demand", "-o -n 500 -c"),
    pingpong("rc on demand, whole space, prefetched", "-O -P -n 500 -c"),
    pingpong("rc device memory", "-j -n 500 -c"),
    pingpong("uc polling", "-n 1000 -c"),
    pingpong("uc events", "-e -n 1000"),
    pingpong("ud polling", "-s 2048 -n 1000 -c"),
    pingpong("ud events", "-e -s 1024 -n 1000"),
    pingpong("srq 1 queue pair", "-q 1 -n 1000 -c"),
    pingpong("srq 16 queue pairs", "-q 16 -n 1000 -c"),
    pingpong("srq events", "-e -q 8 -n 1000"),
]

PERFTESTS = [
    perftest("write_bw all sizes", "ib_write_bw", "-a -n 100", up_to(8388608), 600),
    perftest("write_bw 8 queue pairs", "ib_write_bw", "-q 8 -n 200"),
    perftest("write_bw both ways", "ib_write_bw", "-b -n 500"),
    perftest("write_bw post list", "ib_write_bw", "-l 16 -s 1024 -n 960"),
    perftest("write_bw inline", "ib_write_bw", "-I 64 -s 64 -n 1000"),
    perftest("write_bw 2 s", "ib_write_bw", "-D 2"),
    perftest("write_bw cq moderation", "ib_write_bw", "-Q 50 -n 1000"),
    perftest("write_lat all sizes", "ib_write_lat", "-a -n 5", up_to(8388608), 600),
    perftest("write_lat inline", "ib_write_lat", "-I 64 -s 64 -n 100"),
    perftest("write_bw UC", "ib_write_bw", "-c UC -n 200"),
    perftest("write_lat UC", "ib_write_lat", "-c UC -n 50"),
    perftest("send_bw all sizes", "ib_send_bw", "-a -n 100", up_to(8388608), 600),
    perftest("send_bw UD", "ib_send_bw", "-c UD -s 4096 -n 500"),
    perftest("send_bw UC", "ib_send_bw", "-c UC -s 4096 -n 500"),
    perftest("send_bw srq", "ib_send_bw", "--use-srq -q 4 -n 500"),
    perftest("send_bw events", "ib_send_bw", "-e -n 500"),
    perftest("send_bw both ways", "ib_send_bw", "-b -n 500"),
    perftest("send_lat all sizes", "ib_send_lat", "-a -n 5", up_to(8388608), 600),
    perftest("send_lat UD", "ib_send_lat", "-c UD -s 1024 -n 50"),
    perftest("send_lat UC", "ib_send_lat", "-c UC -s 1024 -n 50"),
    perftest("send_lat srq", "ib_send_lat", "--use-srq -n 50"),
    perftest("send_lat events", "ib_send_lat", "-e -n 100"),
    perftest("read_bw all sizes", "ib_read_bw", "-a -n 100", up_to(8388608), 600),
    perftest("read_bw 4 queue pairs", "ib_read_bw", "-q 4 -n 200"),
    perftest("read_lat all sizes", "ib_read_lat", "-a -n 20", up_to(8388608), 600),
    perftest("read_bw events", "ib_read_bw", "-e -n 200"),
    perftest("atomic_bw fetch and add", "ib_atomic_bw", "-A FETCH_AND_ADD -n 500"),
    perftest("atomic_bw compare and swap", "ib_atomic_bw", "-A CMP_AND_SWAP -n 500"),
    perftest("atomic_lat fetch and add", "ib_atomic_lat", "-A FETCH_AND_ADD -n 100"),
    perftest("atomic_lat compare and swap", "ib_atomic_lat", "-A CMP_AND_SWAP -n 100"),
]

UCX = [
    ucx("ucx uct am_lat", "rc_v", "am_lat", "-D short -s 8 -n 2000 -w 100"),
    ucx("ucx uct am_bw bcopy", "rc_v", "am_bw", "-D bcopy -s 4096 -n 2000 -w 100"),
    ucx("ucx uct am_bw zcopy", "rc_v", "am_bw", "-D zcopy -s 8192 -n 2000 -w 100"),
    ucx("ucx uct put_lat", "rc_v", "put_lat", "-D short -s 8 -n 1000 -w 50"),
    ucx("ucx uct put_bw zcopy", "rc_v", "put_bw", "-D zcopy -s 65536 -n 1000 -w 50"),
    ucx("ucx uct get zcopy", "rc_v", "get", "-D zcopy -s 65536 -n 1000 -w 50"),
    ucx("ucx uct fadd", "rc_v", "fadd", "-s 8 -n 1000 -w 50"),
    ucx("ucx uct cswap", "rc_v", "cswap", "-s 8 -n 1000 -w 50"),
    ucx("ucx ucp tag_lat", "rc_v", "tag_lat", "-s 8 -n 2000 -w 100"),
    ucx("ucx ucp tag_lat 1 MiB", "rc_v", "tag_lat", "-s 1048576 -n 200 -w 10"),
    ucx("ucx ucp tag_bw 64 KiB", "rc_v", "tag_bw", "-s 65536 -n 1000 -w 50"),
    ucx("ucx ucp put_bw", "rc_v", "ucp_put_bw", "-s 65536 -n 1000 -w 50"),
    ucx("ucx ucp get", "rc_v", "ucp_get", "-s 65536 -n 1000 -w 50"),
    ucx("ucx ucp am_lat", "rc_v", "ucp_am_lat", "-s 1024 -n 1000 -w 50"),
]

# MPICH without windows: those of Debian 12's release are wrong over UCX's TCP and shared memory too.
MPI = [
    mpi("mpi MPICH rc", "mpich", "mpirun.mpich -launcher fork", 3, UCX_TLS="rc_v,self"),
    mpi("mpi MPICH ud", "mpich", "mpirun.mpich -launcher fork", 2, UCX_TLS="ud_v,self"),
    mpi("mpi Open MPI rc", "openmpi", OPEN_MPI, 3, True, UCX_TLS="rc_v,self", **OPEN_MPI_SETTINGS),
    Case(
        "mpi Open MPI mpi4py",
        f"{OPEN_MPI} -n 2 /usr/bin/python3 {{programs}}/mpi_check.py",
        expect=r"\b2 ranks, 0 wrong",
        is_wrapped=True,
        needs=("mpirun.openmpi", "/usr/bin/python3:mpi4py"),
        users=2,
        environment={**UCX_SETTINGS, "UCX_TLS": "rc_v,self", **OPEN_MPI_SETTINGS},
    ),
]

LIBFABRIC = [
    Case("fi_info verbs", "fi_info -p verbs", expect=rf"(?s)domain: {DEVICE}.*type: FI_EP_DGRAM", needs=("fi_info",)),
    Case(
        "fi_pingpong verbs;ofi_rxd",
        f"fi_pingpong -B {{port}} -p 'verbs;ofi_rxd' -e rdm -d {DEVICE}-dgram -c",
        f"-B 0 -P {PORT} 127.0.0.1",
        r"(?m)^1m +10 +=10 ",
        needs=("fi_pingpong",),
    ),
]

GLOO = "/usr/include/gloo/transport/ibverbs/device.h"
BUILD_GLOO = "g++ -std=c++17 -O1 -o gloo_check {programs}/gloo_check.cc -lgloo -libverbs -lpthread"
FRAMEWORKS = [
    Case(
        "torch rpc over TensorPipe's ibv",
        "/usr/bin/python3 {programs}/rpc_check.py {port}",
        expect=r"\b0 wrong",
        needs=("/usr/bin/python3:torch",),
        users=2,
    ),
    *(
        Case(
            f"gloo ibverbs, {ranks} ranks, GID {gid}",
            f"{{folder}}/gloo_check {ranks} {gid} {{folder}}",
            expect=rf"\b{ranks} ranks, 0 failed",
            build=BUILD_GLOO,
            needs=("g++", GLOO),
        )
        for ranks, gid in ((2, 0), (4, GID))
    ),
    *(
        Case(
            f"nixl {transport}",
            "{python} {programs}/nixl_check.py",
            expect=r"(?s)(written|read): 0 wrong.*(written|read): 0 wrong",
            is_wrapped=True,
            needs=("{python}:nixl_cu12",),
            users=2,
            environment={**UCX_SETTINGS, "UCX_TLS": transport},
        )
        for transport in ("rc_v", "ud_v")
    ),
    Case(
        "mooncake rdma",
        "{python} {programs}/mooncake_check.py",
        expect=r"(?s)installTransport, type=rdma.*\b0 wrong",
        is_wrapped=True,
        needs=("{python}:mooncake",),
        users=2,
    ),
]

def profiled(name, command, expect, users):
    """A timer interrupts every thread all the time, as profilers do. Only our own tool, since others are not made for that: servers of
    ibverbs-utils and perftest end at an interrupted accept(), Gloo does not end at all."""
    return Case(
        f"profiled {name}",
        f"env LD_PRELOAD={{folder}}/profiler.so {command}",
        expect=rf"(?s)(?=.*{expect}).*profiler: [1-9]\d+ signals",
        build="cc -O1 -shared -fPIC -o profiler.so {programs}/profiler.c -ldl -lpthread -lrt",
        needs=("cc",),
        users=users,
        environment={"VERBENA_IBVERBS_LIB": "softverbs"},
    )


PERF = r"{bin}/verbena-perf --timeout 60 --sizes 8:1m --factor 16 --iters 20"
PROFILED = [
    profiled("verbena-perf", PERF, "verified", 2),
    profiled("verbena-perf, four rails, staged", f"env SOFTVERBS_DEVICES=4 {PERF} --rails 4 --unpack 1 --threshold unlimited", "verified", 2),
    profiled("verbena-perf, datagrams", f"{PERF} --transport datagram", "verified", 2),
    profiled("verbena-perf, TCP", f"env SOFTVERBS_NETDEVS=127.0.0.1 SOFTVERBS_FORCE_WIRE=1 SOFTVERBS_INSECURE=1 {PERF}", "verified", 2),
]

# With its symbol table, which the libraries of PyPI lack.
NCCL = next(iter(sorted(glob.glob("/usr/local/cuda*/lib*/libnccl.so.2"))), "/usr/local/cuda/lib64/libnccl.so.2")


def nccl_ib(name, **environment):
    """NCCL's own IB transport, which needs no GPU for messages in host memory."""
    return Case(
        f"nccl ib {name}",
        f"{{folder}}/nccl_ib_check {NCCL} 3000",
        expect=r"3000 messages, 0 wrong",
        build="g++ -std=c++20 -O1 -I{programs}/../../../plugin -o nccl_ib_check {programs}/nccl_ib_check.cc -ldl",
        needs=("g++", NCCL),
        environment={"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_GID_INDEX": str(GID), **environment},
    )


NCCL_IB = [
    nccl_ib("one queue pair"),
    nccl_ib("data apart from immediates", NCCL_IB_ADAPTIVE_ROUTING="1"),
    nccl_ib("split over 2 queue pairs", NCCL_IB_QPS_PER_CONNECTION="2", NCCL_IB_SPLIT_DATA_ON_QPS="1"),
]


def over(profile, cases):
    """The same over a device that softverbs imitates (docs/softverbs.md)."""
    return [replace(case, name=f"{profile} {case.name}", environment={**case.environment, "SOFTVERBS_PROFILE": profile}) for case in cases]


def pick(cases, *names):
    return [case for case in cases if case.name in names]


SHORT_PERFTESTS = pick(
    PERFTESTS, "write_bw 8 queue pairs", "write_bw inline", "write_lat inline", "send_bw srq", "send_bw UD", "read_bw 4 queue pairs"
)
ATOMICS = pick(PERFTESTS, "atomic_bw fetch and add") + pick(UCX, "ucx uct fadd", "ucx uct cswap")
PROFILES = [
    *over("mlx5-ar", [*NCCL_IB, *SHORT_PERFTESTS, *pick(PERFTESTS, "atomic_bw fetch and add"), *UCX, *MPI]),
    *over("bnxt", [case for case in [*NCCL_IB, *SHORT_PERFTESTS, *UCX, *MPI] if case not in ATOMICS]),
]

GROUPS = {
    "ibv": DEVICES + PINGPONGS,
    "perftest": PERFTESTS,
    "ucx": UCX,
    "mpi": MPI,
    "libfabric": LIBFABRIC,
    "frameworks": FRAMEWORKS,
    "nccl": NCCL_IB,
    "profiled": PROFILED,
    "profiles": PROFILES,
}
