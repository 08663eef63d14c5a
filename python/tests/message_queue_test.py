"""Tests the message queue between threads of one process and between ranks in separate processes. Creates queues in the ways in which
engines create them."""
import array
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest
from ranks import on_ranks, reserve_port
from verbena import VerbenaError
from verbena.distributed import Handle, MessageQueue, Ranks

PATIENCE_S = 60


def make_pair(**options):
    writer = MessageQueue(1, 1, **{"max_chunk_bytes": 1024, "max_chunks": 3, **options})
    reader = MessageQueue.create_from_handle(pickle.loads(pickle.dumps(writer.export_handle())), 0)
    other = threading.Thread(target=writer.wait_until_ready, args=(PATIENCE_S,))
    other.start()
    reader.wait_until_ready(PATIENCE_S)
    other.join()
    return writer, reader


@pytest.fixture(name="pair")
def fixture_pair():
    writer, reader = make_pair()
    yield writer, reader
    reader.shutdown()
    writer.shutdown()


def send_and_get(pair, obj):
    writer, reader = pair
    sending = threading.Thread(target=writer.enqueue, args=(obj, PATIENCE_S))
    sending.start()
    got = reader.dequeue(PATIENCE_S)
    sending.join()
    return got


@pytest.mark.parametrize("obj", [
    None, 5, "text", b"", b"bytes", {"step": 3, "ids": list(range(100))}, ["x" * 5000],
    b"longer than the whole ring" * 500, {"buffer": bytearray(b"in band" * 3)},
])
def test_objects(pair, obj):
    assert send_and_get(pair, obj) == obj


def test_buffers(pair):
    numbers = array.array("d", range(500))
    assert send_and_get(pair, memoryview(numbers)) == numbers.tobytes()
    assert send_and_get(pair, memoryview(bytes(range(100)))[::7]) == bytes(range(0, 100, 7))
    assert send_and_get(pair, bytearray(b"changes")) == b"changes"
    # Out of band: the buffers of an object, which the receiver may write to.
    given = [pickle.PickleBuffer(bytearray(b"one")), "between", pickle.PickleBuffer(numbers)]
    one, between, other = send_and_get(pair, given)
    one[0] = 0
    assert (bytes(one), between, bytes(other)) == (b"\0ne", "between", numbers.tobytes())


def test_views(pair):
    writer, reader = pair
    writer.enqueue(b"in place")
    with reader.dequeue_view(PATIENCE_S) as view:
        assert view.buffer == b"in place" and view.buffer.readonly
    with pytest.raises(ValueError, match="released"):
        view.buffer[0]
    with pytest.raises(ValueError, match="already released"):
        view.release()
    writer.enqueue({"no": "bytes"})
    with pytest.raises(TypeError):
        reader.dequeue_view(PATIENCE_S)


def test_view_in_use_is_not_pulled_away(pair):
    writer, reader = pair
    writer.enqueue(b"in place")
    view = reader.dequeue_view(PATIENCE_S)
    part = view.buffer[2:]
    with pytest.raises(BufferError):
        view.release()
    reader.shutdown()
    for _ in range(2):
        writer.enqueue(b"into the other chunks")
    with pytest.raises(TimeoutError, match="has read the chunk but has not released the chunk"):
        writer.enqueue(b"into this one", timeout=0.01)
    assert part == b" place"
    part.release()
    view.release()
    for _ in range(4):  # it has left
        writer.enqueue(b"to nobody", timeout=PATIENCE_S)


def test_an_exception_in_a_readers_block_is_the_one_that_is_raised(pair):
    writer, reader = pair
    for number in range(3):
        writer.enqueue(b"message %d" % number)

    def fail(block):
        with block as message:
            part = (message.buffer if hasattr(message, "buffer") else message)[3:]
            raise ZeroDivisionError(len(part))

    # The traceback has the part of the buffer as long as it is looked at, and then the chunk is the writer's again.
    for block in (reader.dequeue_view(PATIENCE_S), reader.acquire_read(PATIENCE_S)):
        with pytest.raises(ZeroDivisionError) as raised:
            fail(block)
    del raised, block
    assert reader.dequeue(PATIENCE_S) == b"message 2"
    for _ in range(3):
        writer.enqueue(b"again", timeout=PATIENCE_S)
    assert [reader.dequeue(PATIENCE_S) for _ in range(3)] == [b"again"] * 3


def test_a_view_that_is_dropped_is_given_back(pair):
    writer, reader = pair
    for _ in range(10):  # more than there are chunks
        writer.enqueue(b"x", timeout=PATIENCE_S)
        reader.dequeue_view(PATIENCE_S)


def test_in_place(pair):
    writer, reader = pair
    with writer.acquire_write(PATIENCE_S, length=3) as chunk:
        chunk[:] = b"abc"
    with reader.acquire_read(PATIENCE_S) as message:
        assert message == b"abc"
    with pytest.raises(ZeroDivisionError), writer.acquire_write(PATIENCE_S):
        1 / 0
    with writer.acquire_write(PATIENCE_S) as chunk:
        assert len(chunk) == 1024
    with reader.acquire_read(PATIENCE_S) as message:
        assert len(message) == 1024


def test_timeouts(pair):
    writer, reader = pair
    with pytest.raises(TimeoutError):
        reader.dequeue(timeout=0.01)
    for _ in range(3):
        writer.enqueue(b"x")
    with pytest.raises(TimeoutError, match=r"chunk 0\) was written .* reader 0 \(rank 0, process \d+\) has not read the chunk"):
        writer.enqueue(b"y", timeout=0.01)
    assert [reader.dequeue(0) for _ in range(3)] == [b"x"] * 3


def test_cancel(pair):
    _, reader = pair
    event = threading.Event()
    threading.Timer(0.05, event.set).start()
    with pytest.raises(RuntimeError, match="cancelled"):
        reader.dequeue(cancel=event)
    threading.Timer(0.05, reader.cancel).start()
    with pytest.raises(RuntimeError, match="cancelled"):
        reader.dequeue()


def test_signals_are_handled_while_waiting(pair):
    _, reader = pair
    handled = []
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(time.monotonic()))
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(TimeoutError):
            reader.dequeue(timeout=0.5)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(handled) == 1


def test_the_end(pair):
    writer, reader = pair
    writer.enqueue("last")
    writer.shutdown()
    assert reader.dequeue(PATIENCE_S) == "last"
    with pytest.raises(VerbenaError, match="has shut the queue down"):
        reader.dequeue(PATIENCE_S)
    with pytest.raises(VerbenaError, match="this process has shut the queue down"):
        writer.enqueue("more")
    writer.shutdown()


def test_shutdown_by_another_thread_ends_a_call():
    """As vLLM's thread does that watches for the parent's death."""
    for end in ("reader", "writer"):
        writer, reader = make_pair()
        for _ in range(3):
            writer.enqueue(b"x")
        call = reader.dequeue if end == "reader" else (lambda queue=writer: queue.enqueue(b"no room"))
        said = []

        def run_until_it_fails(call=call, said=said):
            with pytest.raises(VerbenaError, match="cancelled") as raised:
                while True:
                    call()
            said.append(str(raised.value))

        blocked = threading.Thread(target=run_until_it_fails)
        blocked.start()
        time.sleep(0.05)
        (reader if end == "reader" else writer).shutdown()
        blocked.join(PATIENCE_S)
        assert len(said) == 1


def test_readers_without_a_rank_of_their_own():
    """As in vLLM, readers on the writer's host have ranks, and all other readers may have any number, even -1."""
    writer = MessageQueue(4, 2, [7, 8], 1024, 4)
    handle = pickle.loads(pickle.dumps(writer.export_handle()))
    assert handle == Handle.from_bytes(handle.to_bytes())
    assert handle.local_reader_ranks == [7, 8] and handle.remote_subscribe_addr.startswith("tcp://")
    readers = [MessageQueue.create_from_handle(handle, rank) for rank in (-1, 7, 30, 8)]
    waiting = [threading.Thread(target=queue.wait_until_ready, args=(PATIENCE_S,)) for queue in (writer, *readers)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    writer.enqueue("to all")
    assert [reader.dequeue(PATIENCE_S) for reader in readers] == ["to all"] * 4
    readers[1].shutdown()
    with pytest.raises(TimeoutError, match="reader 1 .rank 8"):
        for _ in range(5):
            writer.enqueue("x", timeout=0.05)
    with MessageQueue(1, 1) as local:
        assert local.export_handle().remote_subscribe_addr is None
        reader = MessageQueue.create_from_handle(local.export_handle(), -1)
        assert reader.export_handle() == local.export_handle()


def test_arguments():
    with pytest.raises(ValueError, match="n_local_reader is 2, more than n_reader, 1"):
        MessageQueue(1, 2)
    with pytest.raises(ValueError, match="names"):
        MessageQueue(2, reader_ranks=[3, 3])
    with MessageQueue(2, 2, local_reader_ranks=[4, 7]) as queue:
        with pytest.raises(ValueError, match=r"its readers are \[4, 7\]"):
            MessageQueue.create_from_handle(queue.export_handle(), 0)
        with pytest.raises(TimeoutError, match=r"the missing readers are: reader 0 \(rank 4\), reader 1 \(rank 7\)"):
            queue.wait_until_ready(0.05)


@pytest.mark.parametrize("poses", [False, True])
@on_ranks(3)
def test_over_ranks(rank, poses):
    if poses and rank == 1:
        os.environ["VERBENA_HOSTID"] = "elsewhere"
    ranks = Ranks(timeout=PATIENCE_S)
    queue = MessageQueue.create_from_process_group(ranks, max_chunk_bytes=4096, max_chunks=4, writer_rank=2)
    assert queue.is_writer == (rank == 2)
    assert queue.is_local == (not poses or rank == 0)
    got = [queue.broadcast_object({"step": step, "data": b"d" * 3 ** step} if rank == 2 else None) for step in range(10)]
    ranks.barrier()
    queue.shutdown()
    ranks.close()
    assert [(one["step"], len(one["data"])) for one in got] == [(step, 3 ** step) for step in range(10)]


@on_ranks(3)
def test_single_reader(rank):
    """As an engine's workers answer its first rank."""
    ranks = Ranks(timeout=PATIENCE_S)
    mine, handles = MessageQueue.create_from_process_group_single_reader(ranks, 4096, 4, reader_rank=0)
    answers = []
    if rank == 0:
        queues = [MessageQueue.create_from_handle(handle, 0) for handle in handles]
    waiting = threading.Thread(target=mine.wait_until_ready, args=(PATIENCE_S,))
    waiting.start()
    if rank == 0:
        for queue in queues:
            queue.wait_until_ready(PATIENCE_S)
    waiting.join()
    mine.enqueue(rank * 11)
    if rank == 0:
        answers = [queue.dequeue(PATIENCE_S) for queue in queues]
    ranks.barrier()
    assert answers == ([0, 11, 22] if rank == 0 else [])


READER = """
import os, pickle, sys
from verbena.distributed import MessageQueue
queue = MessageQueue.create_from_handle(pickle.loads(bytes.fromhex(sys.argv[1])), 0)
queue.wait_until_ready(60)
print(queue.dequeue(60), flush=True)
queue.dequeue()
"""


def test_dead_reader_is_named():
    with MessageQueue(1, max_chunk_bytes=64, max_chunks=4) as queue:
        handle = pickle.dumps(queue.export_handle()).hex()
        with subprocess.Popen([sys.executable, "-c", READER, handle], stdout=subprocess.PIPE, text=True) as reader:
            queue.wait_until_ready(PATIENCE_S)
            queue.enqueue("to a process of its own")
            assert reader.stdout.readline() == "to a process of its own\n"
            reader.kill()
            reader.wait(PATIENCE_S)
            with pytest.raises(VerbenaError, match=rf"reader 0 \(rank 0, process {reader.pid}\) is dead or unreachable"):
                for _ in range(100):
                    queue.enqueue("anybody?", timeout=PATIENCE_S)
                    time.sleep(0.05)
            queue.drop_reader(0)
            queue.enqueue("nobody")


# Both ends in one process, so that a child has a copy of each; the ring has room for three.
FORKED = """
import gc, os, sys, threading
from verbena.distributed import MessageQueue
writer = MessageQueue(1, max_chunk_bytes=1024, max_chunks=3)
reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
other = threading.Thread(target=writer.wait_until_ready, args=(60,))
other.start(); reader.wait_until_ready(60); other.join()
child = os.fork()
if child == 0:
    {how}
assert os.waitpid(child, 0)[1] == 0
for number in range(3):
    writer.enqueue(number, timeout=60)
try:
    writer.enqueue("no room", timeout=0.05)
    sys.exit("the writer does not wait for its reader any more")
except TimeoutError:
    pass
assert [reader.dequeue(60) for number in range(3)] == [0, 1, 2]
"""


@pytest.mark.parametrize("how", [
    "os._exit(0)",
    "sys.exit(0)",
    "del writer, reader; gc.collect(); os._exit(0)",
    "writer.shutdown(); reader.shutdown(); os._exit(0)",
    """
    for call in (lambda: writer.enqueue("mine"), reader.dequeue, writer.wait_until_ready, lambda: writer.drop_reader(0)):
        try:
            call()
            os._exit(1)
        except Exception as error:
            assert "before a fork" in str(error), error
    writer.cancel(); reader.cancel(); os._exit(0)
"""])
def test_forked_child_changes_nothing(how):
    done = subprocess.run([sys.executable, "-c", FORKED.format(how=how)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr


PAIR = """
from verbena.distributed import MessageQueue
import threading
writer = MessageQueue(1, 1, max_chunk_bytes=1024, max_chunks=2)
reader = MessageQueue.create_from_handle(writer.export_handle(), 0, spin_us=SPIN)
other = threading.Thread(target=writer.wait_until_ready, args=(60,))
other.start(); reader.wait_until_ready(60); other.join()
"""
RANKS = """
import os
os.environ.update(RANK=os.environ.get("RANK", "@RANK@"), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", VERBENA_BOOTSTRAP_PORT="@PORT@")
from verbena.distributed import Ranks, init_dist_env
"""
WAITS = {
    "the other rank does not come": (RANKS, "init_dist_env(2)"),
    "rank 0 does not come": (RANKS.replace("@RANK@", "1"), "Ranks()"),
    "a rank is late": (RANKS + """
child = os.fork()
os.environ["RANK"] = "1" if child == 0 else "0"
ranks = Ranks()
if child == 0:
    import signal
    signal.pause()
""", "ranks.barrier()"),
    "the readers do not come": (PAIR.split("reader =", maxsplit=1)[0], "writer.wait_until_ready()"),
    "the writer does not come": (PAIR.split("other =", maxsplit=1)[0], "reader.wait_until_ready()"),
    "no message": (PAIR, "reader.dequeue()"),
    "no message, spinning": (PAIR.replace("SPIN", "-1"), "reader.dequeue()"),
    "no room": (PAIR + "writer.enqueue(b'x'); writer.enqueue(b'x')", "writer.enqueue(b'x')"),
    "no room for the rest": (PAIR, "writer.enqueue(bytes(10000))"),
}
AROUND = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: None)  # what does not raise does not end it
print("waiting", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
{after}
"""


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_every_wait(name):
    before, call = WAITS[name]
    after = "import os; os.killpg(0, signal.SIGKILL)" if "fork" in before else "import os; os._exit(0)"
    with reserve_port() as holder:
        code = (before + AROUND.format(call=call, after=after)).replace("SPIN", "0").replace("@RANK@", "0")
        code = code.replace("@PORT@", str(holder.getsockname()[1]))
        environment = dict(os.environ, VERBENA_BOOTSTRAP_TIMEOUT_MS="600000")
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment,
                              start_new_session=True) as process:
            try:
                assert process.stdout.readline() == "waiting\n"
                for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGINT):
                    time.sleep(0.1)
                    process.send_signal(number)
                killing = threading.Timer(PATIENCE_S, process.kill)
                killing.start()
                assert process.stdout.readline() == "interrupted\n"
                killing.cancel()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
