"""Everything but the kernels and PyTorch's backend can be imported where there is neither PyTorch nor Triton, and before any library is built."""
import os
import pathlib
import shutil
import subprocess
import sys

import verbena

IMPORT_ALL = """
import pkgutil, sys
sys.modules.update(torch=None, triton=None, torchcomms=None)
import verbena
need_others = ("verbena.triton", "verbena.c10d")
names = [module.name for module in pkgutil.iter_modules(verbena.__path__, "verbena.") if module.name not in need_others]
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


def test_the_folder_of_the_package_is_quoted_for_the_shell(tmp_path):
    package = tmp_path / "a b; touch ran; '" / "verbena"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "lib" / "libnccl-net-verbena.so").touch()
    shutil.copy(pathlib.Path(verbena.__file__).parent / "__main__.py", package)
    for others in ("", "/x y"):
        command = f'eval "$({sys.executable} -m verbena)"; printf %s "$LD_LIBRARY_PATH"'
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package.parent), "LD_LIBRARY_PATH": others}
        told = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
                              check=True)
        assert told.stdout == str(package / "lib") + (f":{others}" if others else "")
    assert not (tmp_path / "ran").exists()
