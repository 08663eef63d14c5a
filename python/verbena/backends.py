"""The table of backends. A backend is the library that provides symmetric memory. A new backend needs constants in verbena.constants, a row
in this table, and the module that contains its builder."""
import dataclasses

from verbena.constants import Backend


@dataclasses.dataclass(frozen=True)
class VendorLibrary:
    """The library of a backend's vendor. The fields say where the vendor's wheel or package installs the library."""

    wheel: str = ""     # nvidia/WHEEL/lib in site-packages
    variable: str = ""  # an environment variable that overrides this folder
    host: str = ""      # the library to load before contexts are created; empty if the application must load the library
    # The key of the device code in a Triton kernel's extern_libs. The file is KEY.bc, or each GPU architecture has a file KEY_sm_*.bc.
    device: str = ""
    # Advice for users whose LLVM cannot read the device code.
    hint: str = ""


@dataclasses.dataclass(frozen=True)
class BackendRow:
    # The bitcode of the primitives for this backend. The file is lib<bitcode>.bc; the key in a Triton kernel's extern_libs is <bitcode>.
    bitcode: str
    # The module of the builder. If `library` is set, the module also has PROTOTYPES, the signatures of the library's functions. The
    # module is imported at first use.
    module: str
    builder: str
    library: str = ""  # the library that creates contexts; empty for libverbena.so
    origin: str = ""   # how to get `library`; part of the error if `library` is missing
    vendor: VendorLibrary = VendorLibrary()
    # True if the primitives call the vendor's device code, so that kernels must be linked with this code.
    calls_vendor: bool = False


_NCCL = BackendRow(
    bitcode="verbena_symm_nccl", module="verbena.nccl", builder="NCCLSymmContextBuilder", library="libverbena_nccl.so",
    origin="CMake builds this library beside libverbena.so if CMake finds CUDA and nccl_device.h of NCCL 2.28.7 or newer "
           "(to name the folder of nccl_device.h, set VERBENA_NCCL_INCLUDE)",
    # NCCL's packages do not contain its device code. Build it from the source of NCCL 2.29 or newer, with EMIT_LLVM_IR=1.
    vendor=VendorLibrary("nccl", "NCCL_LIB_DIR", device="libnccl_device"))

BACKENDS: dict[Backend, BackendRow] = {
    Backend.VERBENA: BackendRow(bitcode="verbena_symm", module="verbena.builders", builder="VerbenaSymmContextBuilder"),
    Backend.NCCL: _NCCL,
    Backend.NCCLX: dataclasses.replace(_NCCL, builder="NCCLxSymmContextBuilder"),
    Backend.NVSHMEM: BackendRow(
        bitcode="verbena_symm_nvshmem", module="verbena.nvshmem", builder="NVSHMEMSymmContextBuilder",
        library="libverbena_nvshmem.so", origin="CMake builds this library beside libverbena.so if CMake finds CUDA",
        vendor=VendorLibrary("nvshmem", "NVSHMEM_LIB_DIR", host="libnvshmem_host.so.3", device="libnvshmem_device",
                             hint="Triton 3.6 can read the device code of NVSHMEM 3.4"),
        calls_vendor=True),
}
# The bitcode that serves all backends. Each primitive in this bitcode reads the backend from the context.
ANY_BITCODE = "verbena_symm_any"


def find_bitcode(backend: Backend) -> str:
    """Returns the key of a backend's bitcode; the file is libKEY.bc. For DEFAULT, returns the key of the bitcode that serves all
    backends."""
    return ANY_BITCODE if backend == Backend.DEFAULT else BACKENDS[backend].bitcode


def find_called_vendors(backend: Backend) -> list[Backend]:
    """Returns the backends whose vendor's device code must be linked into kernels that are compiled for `backend`. If `backend` is DEFAULT,
    returns all backends whose primitives call the vendor's device code."""
    return [one for one, row in BACKENDS.items() if row.calls_vendor and backend in (one, Backend.DEFAULT)]
