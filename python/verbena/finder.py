"""Finds libverbena.so and the bitcode of the device library."""
import os
import pathlib
import re
import sys
import sysconfig
from collections.abc import Callable

from verbena import settings
from verbena.backends import BACKENDS, find_bitcode
from verbena.constants import Backend

LIBRARY_VARIABLE = "LIBVERBENA_PATH"
OPS_VARIABLE = "LIBVERBENA_OPS_PATH"
BITCODE_VARIABLE = "LIBVERBENA_BITCODE_PATH"
# PyTorch's variable for the bitcode. The finder first searches the folder in this variable, and then all other folders, because the
# variable may name the bitcode of PyTorch itself.
TORCH_VARIABLE = "TORCH_SYMM_LIB_PATH"
LIBRARY_NAME = "libverbena.so"
OPS_LIBRARY_NAME = "libverbena_ops.so"

_PACKAGE = pathlib.Path(__file__).resolve().parent
_PRESETS = ("default", "debug")
# lib, or lib/x86_64-linux-gnu on Debian.
_LIBRARY_FOLDERS = ("lib", f"lib/{sysconfig.get_config_var('MULTIARCH')}")


class LibraryNotFound(RuntimeError):
    """Raised if a library was not found. The text lists every path that was searched."""


class LibraryFinder:
    """Finds the libraries. If the environment variable of a library is set, the finder searches only the path in the variable. Otherwise
    the finder searches the package, the folders of an installation, and the build folders of the source tree that contains the package."""

    @classmethod
    def find_library(cls) -> str:
        """Returns the path of libverbena.so."""
        return _find(LIBRARY_NAME, LIBRARY_VARIABLE, _list_folders())

    @classmethod
    def find_ops_library(cls) -> str:
        """Returns the path of libverbena_ops.so. Searches the folder of libverbena.so, unless LIBVERBENA_OPS_PATH is set."""
        if settings.read(OPS_VARIABLE):
            return _find(OPS_LIBRARY_NAME, OPS_VARIABLE, [])
        return _find(OPS_LIBRARY_NAME, LIBRARY_VARIABLE, _list_folders(), stands_for_folder=True)

    @classmethod
    def find_backend_library(cls, backend: Backend) -> str:
        """Returns the path of the library that creates the backend's contexts. The library is in the same folder as libverbena.so."""
        return _find(BACKENDS[Backend(backend)].library, LIBRARY_VARIABLE, _list_folders(), stands_for_folder=True)

    @classmethod
    def find_device_library(cls, backend: Backend = Backend.VERBENA) -> str:
        """Returns the path of the primitives' bitcode. The file for DEFAULT serves all backends."""
        folders = [folder / "bitcode" for folder in _list_folders()]
        named = os.environ.get(TORCH_VARIABLE)
        if named:
            path = pathlib.Path(named).absolute()
            folders.insert(0, path.parent if path.is_file() else path)
        return _find(f"lib{find_bitcode(Backend(backend))}.bc", BITCODE_VARIABLE, folders, stands_for_folder=True)

    @classmethod
    def find_vendor_library(cls, backend: Backend) -> str:
        """Returns the path of the host library of the backend's vendor."""
        vendor = BACKENDS[backend].vendor
        return _find(vendor.host, vendor.variable, _list_vendor_folders(vendor.wheel))

    @classmethod
    def find_vendor_bitcode(cls, backend: Backend, capability: int | None = None) -> str:
        """Returns the path of the device code of the backend's vendor. If the vendor installs one file for each compute capability (such as
        90), returns the file with the highest capability that is not above `capability`. If `capability` is None, returns the file with the
        highest capability."""
        vendor = BACKENDS[backend].vendor
        try:
            return _find(f"{vendor.device}.bc", vendor.variable, _list_vendor_folders(vendor.wheel),
                         alternatives=_choose_architecture(vendor.device, capability))
        except LibraryNotFound as error:
            wanted = "any GPU" if capability is None else f"sm_{capability} or an older GPU"
            raise LibraryNotFound(f"{error}\nThere is no file {vendor.device}_sm_*.bc for {wanted} either.") from None

    @classmethod
    def find_nccl_device_library(cls) -> str:
        return cls.find_vendor_bitcode(Backend.NCCL)

    @classmethod
    def find_nvshmem_device_library(cls, capability: int | None = None) -> str:
        return cls.find_vendor_bitcode(Backend.NVSHMEM, capability)

    @classmethod
    def is_available(cls, backend: Backend = Backend.VERBENA) -> bool:
        """Returns whether kernels can be compiled for the backend."""
        try:
            cls.find_device_library(backend)
        except LibraryNotFound:
            return False
        return True


class TorchSymmLibFinder(LibraryFinder):
    """LibraryFinder with the class name and the default arguments of the API that was proposed for PyTorch."""

    @classmethod
    def find_device_library(cls, backend: Backend = Backend.DEFAULT) -> str:
        return super().find_device_library(backend)


def _list_folders() -> list[pathlib.Path]:
    # If this file is in PREFIX/lib/python3/dist-packages/verbena, search PREFIX first.
    own = [_PACKAGE.parents[3]] if len(_PACKAGE.parents) > 3 and _PACKAGE.parents[2].name == "lib" else []
    prefixes = dict.fromkeys([*own, *map(pathlib.Path, (sys.prefix, "/usr/local", "/usr"))])
    installed = [prefix / name for prefix in prefixes for name in _LIBRARY_FOLDERS]
    tree = _PACKAGE.parents[1]
    is_in_tree = (tree / "CMakePresets.json").is_file()
    built = [tree / "build" / preset / "lib" for preset in _PRESETS if is_in_tree]
    return [_PACKAGE / "lib", *installed, *built]


def _list_vendor_folders(name: str) -> list[pathlib.Path]:
    """Returns the folders in which the vendor's wheel or package installs its libraries."""
    wheels = [pathlib.Path(entry) / "nvidia" / name / "lib" for entry in sys.path if entry]
    return [*wheels, pathlib.Path(sys.prefix) / "lib", pathlib.Path("/usr/local/lib"), pathlib.Path("/usr/lib")]


def _choose_architecture(name: str, capability: int | None) -> Callable[[pathlib.Path], pathlib.Path | None]:
    """Returns a function that chooses among the files NAME_sm_*.bc of a folder."""
    def choose(folder: pathlib.Path) -> pathlib.Path | None:
        found = {}
        for path in folder.glob(f"{name}_sm_*.bc"):
            number = re.fullmatch(r".*_sm_(\d+)", path.stem)
            # Skips files whose names end with a letter (sm_90a), because such code runs on GPUs of exactly this architecture only.
            if number and (capability is None or int(number[1]) <= capability):
                found[int(number[1])] = path
        return found[max(found)] if found else None
    return choose


def _find(name: str, variable: str, folders: list[pathlib.Path], stands_for_folder: bool = False,
          alternatives: Callable[[pathlib.Path], pathlib.Path | None] | None = None) -> str:
    """Returns the first path at which the file exists. The environment variable `variable` may contain the path of the file or of its
    folder. With `stands_for_folder`, the variable stands for a folder: if it contains the path of a file, that file's folder is
    searched."""
    paths = [folder / name for folder in folders]
    named = os.environ.get(variable)
    if named:
        path = pathlib.Path(named).absolute()
        is_folder = path.is_dir() or stands_for_folder
        paths = [(path.parent if path.is_file() else path) / name if is_folder else path]
    for path in paths:
        if path.is_file():
            return str(path)
        alternative = alternatives(path.parent) if alternatives else None
        if alternative is not None:
            return str(alternative)
    places = "\n".join(f"  {path}" for path in paths)
    searched = f"Only the path in {variable} was searched" if named else f"These paths were searched, because {variable} is not set"
    raise LibraryNotFound(f"{name} was not found. {searched}:\n{places}")
