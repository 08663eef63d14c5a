"""Installs the build into a separate folder for the tests here."""
import os
import pathlib
import shutil
import subprocess

PROJECT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 120


def run(*command, environment=None, folder=None, limit_s=LIMIT_S):
    """The command's output; an AssertionError with all of it when it fails."""
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, **(environment or {})}, cwd=folder, timeout=limit_s)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}"
    return done.stdout


def install(build, prefix, *options, environment=None):
    run("cmake", "--install", build, "--prefix", prefix, *options, environment=environment)


def list_files(folder):
    """Everything below it but folders, relative to it."""
    return {str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*")
            if path.is_symlink() or not path.is_dir()}


def find_libraries(prefix):
    """The folder of libraries: lib, or lib/x86_64-linux-gnu."""
    found = list(pathlib.Path(prefix).glob("lib/**/libnccl-net-verbena.so"))
    assert len(found) == 1, f"libnccl-net-verbena.so below {prefix}: {found}"
    return found[0].parent


def find_missing(*programs):
    """A line that names those which are not installed, or nothing."""
    missing = [program for program in programs if shutil.which(program) is None]
    return f"no {', '.join(missing)}: tools/setup test installs what is missing" if missing else ""


def is_elf(path):
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def leave_if_missing(*programs):
    """Ends the test as skipped."""
    why = find_missing(*programs)
    if why:
        print(why)
        raise SystemExit(77)


def make_packages(build, folder):
    """Package files by package name. Compressed the fast way: only their size differs from what is given away."""
    run("cpack", "-G", "DEB", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip", "-B", folder, folder=build)
    return {path.name.split("_")[0]: path for path in pathlib.Path(folder).glob("*.deb")}
