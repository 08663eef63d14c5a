"""Tests the detection of NVLink between GPUs with a stand-in for NVIDIA's management library."""
import ctypes
import types

from verbena.integrations import engine
from verbena.links import find_bus_id, has_nvlink

GPUS = {b"0000:01:00.0": 1, b"0000:02:00.0": 2, b"0000:03:00.0": 3}
LINKED = {(1, 2), (2, 1)}


def _make_library(failing=()):
    def find_gpu(bus_id, gpu):
        if bus_id not in GPUS:
            return 6
        ctypes.cast(gpu, ctypes.POINTER(ctypes.c_void_p))[0] = GPUS[bus_id]
        return 0

    def ask(one, other, kind, status):
        assert kind == 2, "NVLink's"
        ctypes.cast(status, ctypes.POINTER(ctypes.c_int))[0] = 0 if (one.value, other.value) in LINKED else 5
        return 0
    functions = {"nvmlInit_v2": lambda: 0, "nvmlShutdown": lambda: 0, "nvmlDeviceGetHandleByPciBusId_v2": find_gpu,
                 "nvmlDeviceGetP2PStatus": ask}
    return types.SimpleNamespace(**functions | {name: lambda *_: 999 for name in failing})


def test_links():
    one, two, three = (bus_id.decode() for bus_id in GPUS)
    assert has_nvlink(one, [two], _make_library()) and has_nvlink(one, [], _make_library())
    assert not has_nvlink(one, [three], _make_library()) and not has_nvlink(one, [two, three], _make_library())
    assert not has_nvlink(one, ["0000:09:00.0"], _make_library()) and not has_nvlink("", [two], _make_library())
    for name in ("nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetP2PStatus"):
        assert not has_nvlink(one, [two], _make_library([name])), "nobody can tell"


def test_without_a_driver_nobody_can_tell():
    assert find_bus_id() == "" or ":" in find_bus_id()
    assert not has_nvlink("0000:01:00.0", ["0000:02:00.0"])


class _Ranks:
    """Three ranks that answer alike but for what they are told to."""

    def __init__(self, rank, others):
        self.rank, self._others = rank, others

    def all_gather(self, mine):
        return [other(mine) for other in self._others]


def test_all_ranks_have_to_be_linked(monkeypatch):
    monkeypatch.setattr(engine, "has_nvlink", lambda bus_id, peers: True)
    assert engine.are_all_linked(_Ranks(0, [lambda mine: mine] * 3))
    assert not engine.are_all_linked(_Ranks(0, [lambda mine: mine, lambda mine: b"0" if mine == b"1" else mine]))
    asked = []
    monkeypatch.setattr(engine, "has_nvlink", lambda bus_id, peers: asked.append(peers) or True)
    elsewhere = lambda mine: mine if mine == b"1" else b"another-kernel 0000:04:00.0".ljust(len(mine), b"\0")  # noqa: E731
    assert engine.are_all_linked(_Ranks(1, [elsewhere, lambda mine: mine, lambda mine: mine]))
    assert len(asked[0]) == 1, "GPUs of other hosts are reached by multi-node NVLink, or not at all"
