"""The message queue beside vLLM's, from Python as engines use them, in turn in one run. No test: for docs/measurements.

usage: compare_message_queue.py VLLM_WHEEL [--readers N] [--runs N] [--messages N]
Needs torch, pyzmq; of vLLM only shm_broadcast.py, whose few imports of vLLM's are stood in for. PYTHONPATH names python/.
"""
import argparse
import importlib.util
import logging
import multiprocessing
import os
import pathlib
import pickle
import statistics
import sys
import tempfile
import time
import types
import zipfile

FILE = "vllm/distributed/device_communicators/shm_broadcast.py"
WARM_UP = 20
IDLE_S = 5
# vLLM's readers spin for seconds before they sleep; ours sleep at once, unless they are told to spin.
QUEUES = {"verbena": {}, "verbena, spinning for 3 ms": {"spin_us": 3000}, "vllm": {}}


def load_theirs(folder):
    def stand_in(name, **names):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(names)

    for package in ("vllm", "vllm.distributed", "vllm.utils"):
        stand_in(package, __path__=[])
    stand_in("vllm.envs", VLLM_USE_SPINLOOP_EXT=False, VLLM_RINGBUFFER_WARNING_INTERVAL=60)
    sys.modules["vllm"].envs = sys.modules["vllm.envs"]
    stand_in("vllm.distributed.utils", StatelessProcessGroup=type(None), sched_yield=os.sched_yield)
    stand_in("vllm.logger", init_logger=logging.getLogger)
    stand_in("vllm.platforms", current_platform=None)
    stand_in("vllm.utils.cpu_resource_utils", check_cgroup_memory_available=lambda *_, **__: None)
    stand_in("vllm.utils.network_utils", get_ip=lambda: "127.0.0.1", is_valid_ipv6_address=lambda _: False,
             get_open_zmq_inproc_path=lambda: f"inproc://{os.urandom(8).hex()}",
             get_open_zmq_ipc_path=lambda: f"ipc://{folder}/{os.urandom(8).hex()}")
    spec = importlib.util.spec_from_file_location("shm_broadcast", pathlib.Path(folder) / FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["shm_broadcast"] = module
    spec.loader.exec_module(module)
    return module.MessageQueue


def load(which, folder):
    if which == "vllm":
        return load_theirs(folder)
    from verbena.distributed import MessageQueue
    return MessageQueue


def on_processor_ns():
    """This process, by the kernel's scheduler."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        total += int(pathlib.Path(f"/proc/self/task/{task}/schedstat").read_text(encoding="ascii").split()[0])
    return total


def read(which, folder, handle, reader, count, arrived, spent):
    made = load(which, folder)  # the handle is of a class that this loads
    queue = made.create_from_handle(pickle.loads(handle), reader, **QUEUES[which])
    queue.wait_until_ready()
    for number in range(count):
        queue.dequeue()
        arrived[reader * count + number] = time.monotonic_ns()
    before = on_processor_ns()
    queue.dequeue()
    spent[reader] = (on_processor_ns() - before) / 1e6


def measure(which, folder, readers, obj, count, gap_s, spawn):
    queue = load(which, folder)(readers, readers, max_chunk_bytes=4 << 20, max_chunks=6, **QUEUES[which])
    arrived, spent = spawn.Array("q", readers * count, lock=False), spawn.Array("d", readers, lock=False)
    processes = [spawn.Process(target=read, args=(which, folder, pickle.dumps(queue.export_handle()), reader, count, arrived, spent))
                 for reader in range(readers)]
    for process in processes:
        process.start()
    queue.wait_until_ready()
    sent = []
    for _ in range(count):
        time.sleep(gap_s)
        sent.append(time.monotonic_ns())
        queue.enqueue(obj)
    time.sleep(IDLE_S)
    queue.enqueue(None)
    for process in processes:
        process.join()
    took = sorted((max(arrived[number::count]) - sent[number]) / 1e3 for number in range(WARM_UP, count))
    queue.shutdown()
    return statistics.median(took), took[int(0.99 * (len(took) - 1))], max(spent)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel")
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--messages", type=int, default=300)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(options.wheel).extract(FILE, folder)
        for what, obj in (("64 B", b"x" * 64), ("1 MiB", b"x" * (1 << 20))):
            found = {which: [] for which in QUEUES}
            for run in range(options.runs):
                for which in sorted(found, reverse=run % 2 == 1):
                    found[which].append(measure(which, folder, options.readers, obj, options.messages, 0.002, spawn))
            for which, runs in found.items():
                for place, name in enumerate(("median us", "p99 us", f"ms on a processor in {IDLE_S} s idle, worst reader")):
                    values = sorted(run[place] for run in runs)
                    print(f"{what} to {options.readers}, every 2 ms, {which}: {name}: {statistics.median(values):.2f} "
                          f"({values[0]:.2f} to {values[-1]:.2f}, {len(values)} runs)", flush=True)


if __name__ == "__main__":
    main()
