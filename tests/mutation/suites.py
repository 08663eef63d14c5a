"""What each suite changes, and the programs that have to notice it."""
import dataclasses
import pathlib
import platform
import subprocess

import device_faults
import planted
import protocol_faults
import weakenings
from programs import Libraries, Library, Program, list_ctests

DEVICE = pathlib.PurePosixPath("include/verbena/device")
# Headers whose orders and barriers are not weakened, and why.
LEFT_OUT = {
    "atomic.cuh": "it takes its orders from its callers; device.assembly shows that each becomes the instruction",
    "async_copy.cuh": "its orders are instructions of GPUs alone, which device.assembly shows",
    "machine.cuh": "the barriers themselves: one instruction each, which device.assembly shows",
    "multimem.cuh": "its orders are those of what stands for its instructions on an emulated GPU; device.assembly shows these",
    "warpgroup.cuh": "one instruction each; the emulated GPU has none of them and only lets the warp meet",
    "backends/nccl.cuh": "needs NCCL's device code, which no emulated GPU runs",
    "backends/nvshmem.cuh": "needs NVSHMEM's device code, which no emulated GPU runs",
}
PLANTED = {*protocol_faults.CONNECTION, *protocol_faults.LANES, *protocol_faults.DATAGRAM, *device_faults.FAULTS, *device_faults.RACES}
DEVICE_TESTS = [".", "order", "symm", "collectives", "moe"]  # folders of tests/device
DEVICE_FOLDERS = ["include", "include/verbena/tilescale", "include/verbena/nccl_device", "plugin", "tests", "."]
GTEST = ["-lgtest_main", "-lgmock", "-lgtest", "-lpthread"]


@dataclasses.dataclass
class Suite:
    sources: list  # with mutants, from the project's root
    copied: list  # folders or files that the programs read from the copy
    find: object  # find(path, text): the mutants of a source
    programs: list
    flags: list
    shared: list = dataclasses.field(default_factory=list)  # (source, flags, folders) without mutants, in all programs
    faults: dict = dataclasses.field(default_factory=dict)  # planted: each has to be marked somewhere


def list_sources(root, folder, *endings):
    return sorted(path.relative_to(root) for path in (root / folder).rglob("*") if path.suffix in endings)


def device_programs(root, launcher=()):
    for folder in DEVICE_TESTS:
        for path in sorted((root / "tests/device" / folder).glob("*_test.cc")):
            source = path.relative_to(root)
            yield Program(str(source.relative_to("tests/device")), [str(source)], [*DEVICE_FOLDERS, str(source.parent)], GTEST,
                          launcher=list(launcher))


def emulator(root):
    """Only memory.cc shows its accesses to ThreadSanitizer."""
    for path in sorted((root / "tests/device/emulator").glob("*.cc")):
        if not path.name.endswith("_test.cc") and not path.name.startswith("ordering_cases"):
            yield str(path.relative_to(root)), [] if path.name == "memory.cc" else ["-fno-sanitize=all"], DEVICE_FOLDERS


def find_tsan_launcher():
    """gcc 12's runtime cannot map its shadow where the kernel randomises with many bits."""
    command = ["setarch", platform.machine(), "-R"]
    return command if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else []


def planted_suite(sources, copied, faults, programs, flags):
    marked, others = set(), PLANTED - set(faults)
    return Suite(sources, copied, lambda path, text: planted.find(path, text, faults, marked, others), programs, flags, faults=faults)


def orders(root, _build):
    """ThreadSanitizer judges orders and scopes, and sees races."""
    marked, others = set(), PLANTED - set(device_faults.RACES)

    def find(path, text):
        yield from weakenings.find(path, text)
        yield from planted.find(path, text, device_faults.RACES, marked, others)

    sources = [path for path in list_sources(root, DEVICE, ".cuh") if str(path.relative_to(DEVICE)) not in LEFT_OUT]
    return Suite(sources + list_sources(root, "device/ops", ".cuh"), ["include", "device/ops"], find,
                 list(device_programs(root, find_tsan_launcher())),
                 ["-std=c++20", "-O1", "-fsanitize=thread", "-DVERBENA_EMULATOR_TSAN=1", "-DVERBENA_EMULATOR_ASAN=0"], list(emulator(root)),
                 device_faults.RACES)


def operations(root, build):
    """libverbena_ops.so over emulated GPUs (tests/ops)."""
    folder = build / "lib/fake_gpu"
    return Libraries([
        Library("libcuda.so.1", ["tests/ops/fake_gpu.cc", "tests/ops/fake_kernels.cc", "tests/base/driver_stand_in.cc"], ["-O1"], []),
        Library("libverbena_ops.so", sorted(map(str, list_sources(root, "device/ops", ".cc"))),
                [f'-DVERBENA_KERNEL_IMAGES="{build}/tests/ops"', '-DVERBENA_KERNEL_CUDA="13.9.1"', '-DVERBENA_KERNEL_ARCHITECTURE=90'],
                [f"-L{build}/lib", "-lverbena", build / "plugin/tuner/libverbena_tuner.a", build / "plugin/base/libverbena_base.a",
                 build / "plugin/settings/libverbena_settings.a",
                 build / "plugin/crypto/libverbena_crypto.a", "-ldl"]),
    ], DEVICE_FOLDERS), folder


def device(root, build):
    """In a build without sanitizers, which can run libverbena_ops.so too."""
    libraries, folder = operations(root, build)
    programs = [*device_programs(root), *list_ctests(build, "^ops[.]", libraries, folder)]
    suite = planted_suite(list_sources(root, "include/verbena", ".cuh", ".h") + list_sources(root, "device/ops", ".cc", ".h", ".cuh"),
                         ["include", "device/ops"], device_faults.FAULTS, programs,
                         ["-std=c++20", "-O1", "-DVERBENA_EMULATOR_TSAN=0", "-DVERBENA_EMULATOR_ASAN=0"])
    suite.shared = list(emulator(root))
    return suite


def simulation(faults, name, sources, test_filter, seeds_variable, seeds):
    """The cores of plugin/protocol, judged by a simulation whose first seeds are tried."""
    def make(root, _build):
        program = Program(name, sources, ["plugin", "include", "tests", "tools", "."], GTEST, [f"--gtest_filter={test_filter}", "--gtest_fail_fast"],
                          {seeds_variable: str(seeds)}, ["-DVERBENA_IS_SANITIZED=0"], memory_bytes=3 << 30)
        return planted_suite(list_sources(root, "plugin/protocol", ".h", ".cc"), ["plugin/protocol"], faults, [program], ["-std=c++20", "-O1"])
    return make


def of_simulation(folder, names):
    return [f"tests/protocol/{folder}/{name}.cc" for name in names]


connection = simulation(
    protocol_faults.CONNECTION, "failover_test",
    [*of_simulation("simulation", ["fault", "injector", "network", "shape", "sim_port", "simulation"]), "tests/protocol/failover_test.cc",
     "tests/protocol/grant_test.cc", "tools/common/cpu_unpack.cc", "tools/common/pattern.cc"], "Seeds/Failover.*/0:GrantTest.*",
    "FAILOVER_SEEDS", 3000)
lanes = simulation(protocol_faults.LANES, "lane_test", [*of_simulation("lane_simulation", ["rank", "run", "world"]), "tests/protocol/lane_test.cc"],
                   "Seeds/LaneFailover.*/0", "LANE_SEEDS", 3000)
datagram = simulation(
    protocol_faults.DATAGRAM, "datagram_test",
    [*of_simulation("datagram", ["departures_test", "engine_core_test", "grants_test", "loss_times_test", "packet_test", "packet_window_test",
                                 "page_budget_test", "path_table_test", "simulation_test", "slab_test", "timer_wheel_test"]),
     *of_simulation("datagram/simulation", ["fabric", "scenario", "small_world", "world"])], "-DatagramSimulationLong.*", "DATAGRAM_SEEDS", 1500)

SUITES = {"orders": orders, "device": device, "connection": connection, "lanes": lanes, "datagram": datagram}
