"""Everything but the kernels can be imported where there is neither PyTorch nor Triton, and before any library is built."""
import os
import subprocess
import sys

IMPORT_ALL = """
import pkgutil, sys
sys.modules.update(torch=None, triton=None, torchcomms=None)
import verbena
names = [module.name for module in pkgutil.iter_modules(verbena.__path__, "verbena.") if module.name != "verbena.triton"]
for name in names:
    __import__(name)
for name in verbena.__all__:
    getattr(verbena, name)
try:
    verbena.requires_symm
except ImportError as error:
    print(len(names), error.name)
"""


def test_without_torch_and_triton():
    environment = {"LIBVERBENA_PATH": "/nowhere", "PYTHONPATH": os.environ["PYTHONPATH"]}
    told = subprocess.run([sys.executable, "-c", IMPORT_ALL], env=environment, capture_output=True, text=True, timeout=60,
                          check=False)
    assert told.returncode == 0, told.stderr
    count, missing = told.stdout.split()
    assert int(count) >= 12 and missing.startswith("triton")
