"""Builds stand-ins for NCCL, for NVSHMEM and for the libraries that create contexts over them, from a few lines of C. They have only the
functions that the package calls. A context is a real context of libverbena.so with one rank."""
import os
import pathlib
import shutil
import subprocess

import pytest

import verbena
from verbena import finder

_CONTEXTS = r"""
#include <string.h>
typedef int (*gather)(void*, const void*, void*, size_t);
int verbena_context_create_from_all_gather(gather, void*, unsigned, unsigned, void**);
static int gather_alone(void* argument, const void* mine, void* all, size_t bytes_each) {
  (void)argument;
  memcpy(all, mine, bytes_each);
  return 0;
}
void* last_comm;
size_t last_heap_bytes;
int count_contexts;
static int make(size_t heap_bytes, void** context) {
  last_heap_bytes = heap_bytes;
  ++count_contexts;
  // Without a heap: a call that fails, and says why as any other.
  return verbena_context_create_from_all_gather(heap_bytes == 0 ? 0 : gather_alone, 0, 0, 1, context);
}
"""

NCCL_CONTEXTS = _CONTEXTS + """
void* last_buffer;
size_t last_buffer_bytes;
int verbena_nccl_context_create_with_buffer(void* comm, void* buffer, size_t buffer_bytes, size_t heap_bytes,
                                            void** context) {
  last_comm = comm;
  last_buffer = buffer;
  last_buffer_bytes = buffer_bytes;
  return make(heap_bytes, context);
}
int verbena_nccl_context_create(void* comm, size_t heap_bytes, void** context) {
  last_comm = comm;
  return make(heap_bytes, context);
}
"""

NVSHMEM_CONTEXTS = _CONTEXTS + """
int count_prepared, prepare_result;
void* last_module;
int verbena_nvshmem_init(gather all_gather, void* argument, unsigned rank, unsigned count) {
  char mine = 7, all[8] = {0};
  return count > sizeof(all) || all_gather(argument, &mine, all, 1) != 0 || all[rank] != 7 ? 6 : 0;
}
int verbena_nvshmem_context_create(size_t heap_bytes, void** context) { return make(heap_bytes, context); }
int verbena_nvshmem_prepare_module(void* module) {
  if (prepare_result != 0) return prepare_result;
  last_module = module;
  ++count_prepared;
  return 0;
}
"""

NVSHMEM_HOST = "int mark(void) { return %d; }"


def make_nccl_source(version, *names):
    """A library that says so and exports them."""
    lines = [f"int ncclGetVersion(int* version) {{ *version = {version}; return 0; }}"]
    return "\n".join(lines + [f"int {name}(void) {{ return 0; }}" for name in names])


def build(path, source, *options):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.with_suffix(".c")
    text.write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, text, *options], check=True,
                   timeout=60)
    return str(path)


def build_beside_verbena(folder, **sources):
    """Builds libverbena_NAME.so in the folder, next to libverbena.so, where the package searches for it."""
    library = pathlib.Path(verbena.LibraryFinder.find_library())
    folder.mkdir(exist_ok=True)
    (folder / finder.LIBRARY_NAME).symlink_to(library)
    for name, source in sources.items():
        build(folder / f"libverbena_{name}.so", source, str(library))
    return str(folder)


def look_in(folder, **variables):
    """Of this process, which has loaded nothing yet."""
    os.environ.update(LIBVERBENA_PATH=str(folder), NVSHMEM_LIB_DIR=str(folder), **variables)
