"""How the device library is compiled here: by the host's compiler, by clang without CUDA's headers, by nvcc."""
import os
import pathlib
import shutil
import subprocess
import tempfile

INCLUDE = pathlib.Path(__file__).resolve().parents[3] / "include"
ALL_ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
COMPILE_LIMIT_S = 120


def find_clangs():
    """Those that can build for a GPU without CUDA's headers; the oldest is the one that bitcode is built with."""
    return [path for path in map(shutil.which, ("clang++-16", "clang++-19")) if path]


def find_nvcc():
    """(nvcc, ptxas) or None. VERBENA_NVCC names another than the one in the path."""
    nvcc = os.environ.get("VERBENA_NVCC") or shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if not nvcc:
        return None
    ptxas = pathlib.Path(nvcc).resolve().parent / "ptxas"
    return (nvcc, str(ptxas)) if ptxas.exists() else None


def host_command(compiler, standard, source, *more):
    return [compiler, f"-std=c++{standard}", "-x", "c++", f"-I{INCLUDE}", *WARNINGS, *more, str(source)]


def clang_command(clang, architecture, source, *more):
    # clang 16 knows neither the newest architectures nor PTX ISAs: what stands in the text is not its business.
    return [clang, "-x", "cuda", "-std=c++17", "-nocudainc", "-nocudalib", "--cuda-path=/nonexistent", "-nostdlibinc",
            "-nostdinc++", "--cuda-device-only", f"--cuda-gpu-arch=sm_{architecture}", "--cuda-feature=+ptx78", "-mllvm",
            "-nvvm-reflect-enable=0", "-O2", f"-I{INCLUDE}", *WARNINGS, *more, str(source)]


def nvcc_command(nvcc, architecture, source, *more):
    standard = [] if any(word.startswith("-std=") for word in more) else ["-std=c++17"]
    return [nvcc, *standard, f"-arch=sm_{architecture}", f"-I{INCLUDE}", "-Werror", "all-warnings", "-Xcompiler",
            "-Wall,-Wextra", *more, str(source)]


def run(command):
    """(succeeded, everything it said)"""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_LIMIT_S)
    return done.returncode == 0, done.stdout + done.stderr


class Workplace(tempfile.TemporaryDirectory):
    """A folder for one test's files, gone afterwards."""

    def __enter__(self):
        self.path = pathlib.Path(self.name)
        return self

    def write(self, name, text):
        path = self.path / name
        path.write_text(text, encoding="utf-8")
        return path
