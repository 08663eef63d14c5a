"""The table of backends. A new backend needs its numbers in verbena.constants, a row here, and the module that the row
names."""
import dataclasses

from verbena.constants import Backend


@dataclasses.dataclass(frozen=True)
class VendorLibrary:
    """The vendor's library of a backend, and where the vendor's wheel or package puts it."""

    wheel: str = ""     # nvidia/WHEEL/lib in site-packages
    variable: str = ""  # an environment variable that names the folder instead
    host: str = ""      # loaded before contexts are made; empty: the application has loaded it
    # Triton links the device code by this key. The file is KEY.bc, or a KEY_sm_*.bc for each kind of GPU.
    device: str = ""
    # Which release to take, for a user whose LLVM cannot read the device code.
    hint: str = ""


@dataclasses.dataclass(frozen=True)
class BackendRow:
    # The primitives over this backend: the file lib<bitcode>.bc, and the key in a Triton kernel's extern_libs.
    bitcode: str
    # Has the builder of contexts and, if there is a `library`, the PROTOTYPES of its functions. Imported when first used.
    module: str
    builder: str
    library: str = ""  # makes contexts; empty: libverbena.so does
    origin: str = ""   # where `library` comes from, for the error when it is missing
    vendor: VendorLibrary = VendorLibrary()
    # The primitives call the vendor's device code: kernels are linked with it too.
    calls_vendor: bool = False


_NCCL = BackendRow(
    bitcode="verbena_symm_nccl", module="verbena.nccl", builder="NCCLSymmContextBuilder", library="libverbena_nccl.so",
    origin="CMake builds it beside libverbena.so where it finds CUDA and nccl_device.h of NCCL 2.28.7 or newer "
           "(VERBENA_NCCL_INCLUDE names the folder)",
    # NCCL does not ship its device code: it is built from NCCL 2.29 or newer with EMIT_LLVM_IR=1.
    vendor=VendorLibrary("nccl", "NCCL_LIB_DIR", device="libnccl_device"))

BACKENDS: dict[Backend, BackendRow] = {
    Backend.VERBENA: BackendRow(bitcode="verbena_symm", module="verbena.builders", builder="VerbenaSymmContextBuilder"),
    Backend.NCCL: _NCCL,
    Backend.NCCLX: dataclasses.replace(_NCCL, builder="NCCLxSymmContextBuilder"),
    Backend.NVSHMEM: BackendRow(
        bitcode="verbena_symm_nvshmem", module="verbena.nvshmem", builder="NVSHMEMSymmContextBuilder",
        library="libverbena_nvshmem.so", origin="CMake builds it beside libverbena.so where it finds CUDA",
        vendor=VendorLibrary("nvshmem", "NVSHMEM_LIB_DIR", host="libnvshmem_host.so.3", device="libnvshmem_device",
                             hint="NVSHMEM's of 3.4 can be read by Triton 3.6"),
        calls_vendor=True),
}
# The primitives over all backends: each call looks at the context's type.
ANY_BITCODE = "verbena_symm_any"


def find_bitcode(backend: Backend) -> str:
    """Returns the key and file name of a backend's bitcode; DEFAULT: of all backends together."""
    return ANY_BITCODE if backend == Backend.DEFAULT else BACKENDS[backend].bitcode


def find_called_vendors(backend: Backend) -> list[Backend]:
    """Returns the backends whose vendor's device code is linked into kernels for `backend`; DEFAULT: into kernels for all."""
    return [one for one, row in BACKENDS.items() if row.calls_vendor and backend in (one, Backend.DEFAULT)]
