"""A driver for Triton without a GPU. It "loads" modules and "launches" kernels by recording the requests."""
import types

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver


class Recorder:
    def __init__(self, capability=90):
        self.capability = capability
        self.device, self.loaded, self.launched = 0, [], []
        self.utils = types.SimpleNamespace(load_binary=self._load, get_device_properties=lambda device: {"max_shared_mem": 1 << 17})
        recorder = self

        class Launcher:
            def __init__(self, source, metadata):
                pass

            def __call__(self, *arguments):
                recorder.launched.append(arguments)
        self.launcher_cls = Launcher

    def _load(self, name, kernel, shared, device):
        """Returns (module, function, registers, spills, threads). Modules are numbered from 1001."""
        self.loaded.append((name, device))
        return 1000 + len(self.loaded), 77, 32, 0, 1024

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_benchmarker(self):
        def measure(call, quantiles):
            call()
            return [1.0, 1.0, 1.0]
        return measure


def install(monkeypatch, **options):
    recorder = Recorder(**options)
    monkeypatch.setattr(driver, "_active", recorder)
    return recorder


class Pointer:
    """A tensor, as far as a launch looks at it."""

    dtype = "i64"

    def data_ptr(self):
        return 1 << 20
