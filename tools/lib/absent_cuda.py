#!/usr/bin/env python3
"""Makes PyPI's PyTorch loadable on a machine without CUDA. Writes a stub library into PyTorch's folder in place of all CUDA libraries
that are not installed (cuBLAS, cuDNN, NCCL, ...); these would be a download of 2 GB. Tensors in host memory, torch.compile and Gloo
do not need them. A call of a stub ends the process with SIGILL.

usage: absent_cuda.py FOLDER   (torch/lib in site-packages; needs gcc, nm and readelf)
"""
import pathlib
import re
import subprocess
import sys

# Functions of the libraries that may be absent. libcudart.so and libcupti.so are called when PyTorch is imported: install them.
ABSENT = re.compile(r"\bU ((?:nccl|nvshmem|cublas|cudnn|cusparse|cufft|curand|cusolver|nvrtc|cuFile|nvJitLink)\w*)@?([\w.]*)$", re.MULTILINE)
NAMES = re.compile(r"\[(lib(?:nccl|nvshmem_host|cublas|cublasLt|cudnn|cusparse|cusparseLt|cufft|cufile|curand|cusolver|nvrtc|nvJitLink)\.so[.\d]*)\]")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    libraries = [str(path) for path in sorted(folder.glob("lib*.so")) if not path.is_symlink()]
    undefined = set(ABSENT.findall(run("nm", "-D", "--undefined-only", *libraries)))
    names = set(NAMES.findall(run("readelf", "-d", *libraries)))
    # A function is looked up with its version, in a library that has versions.
    versions = {version: [] for _, version in undefined if version}
    for function, version in sorted(undefined):
        if version:
            versions[version].append(function)
    functions = sorted({function for function, _ in undefined})
    assembly = folder / "absent_cuda.s"
    assembly.write_text('.section .note.GNU-stack,""\n.text\nabsent: ud2\n'
                        + "".join(f".globl {name}\n.set {name}, absent\n" for name in functions))
    script = assembly.with_suffix(".map")
    script.write_text("".join(f"{version} {{ global: {'; '.join(found)}; }};\n" for version, found in versions.items()))
    library = folder / "libabsent_cuda.so"
    run("gcc", "-shared", "-nostdlib", "-o", str(library), str(assembly), f"-Wl,--version-script={script}")
    for name in names:
        if not (folder / name).exists():
            (folder / name).symlink_to(library.name)
    print(f"{library}: {len(functions)} functions of {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
