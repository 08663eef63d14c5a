"""Tests that libraries are found in the documented places, and that an error names every place that was searched."""
import dataclasses
import pathlib
import sys

import pytest

import verbena
from verbena import finder
from verbena.backends import BACKENDS


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A source tree and a prefix without any library."""
    for variable in (finder.LIBRARY_VARIABLE, finder.BITCODE_VARIABLE, finder.TORCH_VARIABLE, "NVSHMEM_LIB_DIR", "NCCL_LIB_DIR"):
        monkeypatch.delenv(variable, raising=False)
    _make(tmp_path / "tree" / "CMakePresets.json")
    monkeypatch.setattr(finder, "_PACKAGE", tmp_path / "tree" / "python" / "verbena")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    monkeypatch.setattr(finder, "LIBRARY_NAME", "libsample.so")
    row = dataclasses.replace(BACKENDS[verbena.Backend.VERBENA], bitcode="sample")
    monkeypatch.setitem(BACKENDS, verbena.Backend.VERBENA, row)
    return tmp_path


def _make(path: pathlib.Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return str(path)


def test_the_first_place_wins(tree, monkeypatch):
    built = _make(tree / "tree/build/default/lib/libsample.so")
    assert verbena.LibraryFinder.find_library() == built
    installed = _make(tree / "prefix/lib/libsample.so")
    assert verbena.LibraryFinder.find_library() == installed
    packaged = _make(tree / "tree/python/verbena/lib/libsample.so")
    assert verbena.LibraryFinder.find_library() == packaged
    named = _make(tree / "elsewhere/libsample.so")
    monkeypatch.setenv(finder.LIBRARY_VARIABLE, str(tree / "elsewhere"))
    assert verbena.LibraryFinder.find_library() == named
    monkeypatch.setenv(finder.LIBRARY_VARIABLE, _make(tree / "elsewhere/other.so"))
    assert verbena.LibraryFinder.find_library() == str(tree / "elsewhere/other.so")


def test_a_variable_that_names_nothing_is_an_error(tree, monkeypatch):
    _make(tree / "prefix/lib/libsample.so")
    monkeypatch.setenv(finder.LIBRARY_VARIABLE, str(tree / "nowhere.so"))
    with pytest.raises(verbena.LibraryNotFound) as caught:
        verbena.LibraryFinder.find_library()
    assert str(tree / "nowhere.so") in str(caught.value) and "prefix" not in str(caught.value)


def test_bitcode_lies_below_the_libraries(tree, monkeypatch):
    built = _make(tree / "tree/build/debug/lib/bitcode/libsample.bc")
    assert verbena.LibraryFinder.find_device_library(verbena.Backend.VERBENA) == built
    assert verbena.LibraryFinder.is_available(verbena.Backend.VERBENA)
    for place in (built, pathlib.Path(built).parent):
        monkeypatch.setenv(finder.BITCODE_VARIABLE, str(place))
        assert verbena.LibraryFinder.find_device_library(verbena.Backend.VERBENA) == built
        with pytest.raises(verbena.LibraryNotFound, match="libverbena_symm_nccl.bc"):
            verbena.LibraryFinder.find_device_library(verbena.Backend.NCCL)
    monkeypatch.delenv(finder.BITCODE_VARIABLE)
    assert not verbena.LibraryFinder.is_available(verbena.Backend.NVSHMEM)


def test_pytorchs_variable_comes_first(tree, monkeypatch):
    built = _make(tree / "tree/build/debug/lib/bitcode/libsample.bc")
    # It may name PyTorch's own file, beside which there is none of ours.
    monkeypatch.setenv(finder.TORCH_VARIABLE, _make(tree / "torch/lib/torch_symm.bc"))
    find = verbena.TorchSymmLibFinder.find_device_library
    assert find(verbena.Backend.VERBENA) == built
    beside = _make(tree / "torch/lib/libsample.bc")
    assert find(verbena.Backend.VERBENA) == verbena.LibraryFinder.find_device_library() == beside
    monkeypatch.setenv(finder.TORCH_VARIABLE, str(tree / "torch/lib"))
    assert find(verbena.Backend.VERBENA) == beside
    monkeypatch.setenv(finder.BITCODE_VARIABLE, built)
    assert find(verbena.Backend.VERBENA) == built
    monkeypatch.delenv(finder.BITCODE_VARIABLE)
    # Without a backend: all of them.
    everything = _make(tree / "torch/lib/libverbena_symm_any.bc")
    assert find() == everything


def test_the_backends_libraries_lie_beside_libverbena(tree, monkeypatch):
    for backend, name in ((verbena.Backend.NCCL, "libverbena_nccl.so"), (verbena.Backend.NVSHMEM, "libverbena_nvshmem.so")):
        built = _make(tree / "tree/build/default/lib" / name)
        assert verbena.LibraryFinder.find_backend_library(backend) == built
        for place in (_make(tree / "elsewhere/libsample.so"), str(tree / "elsewhere")):
            monkeypatch.setenv(finder.LIBRARY_VARIABLE, place)
            with pytest.raises(verbena.LibraryNotFound, match=f"elsewhere/{name}"):
                verbena.LibraryFinder.find_backend_library(backend)
        beside = _make(tree / "elsewhere" / name)
        assert verbena.LibraryFinder.find_backend_library(backend) == beside
        monkeypatch.delenv(finder.LIBRARY_VARIABLE)


def test_a_failure_names_every_place(tree):
    with pytest.raises(RuntimeError) as caught:
        verbena.LibraryFinder.find_device_library(verbena.Backend.VERBENA)
    text = str(caught.value)
    for place in ("tree/python/verbena/lib", "prefix/lib", "tree/build/default/lib", "tree/build/debug/lib"):
        assert str(tree / place / "bitcode/libsample.bc") in text
    assert finder.BITCODE_VARIABLE in text
    (tree / "tree/CMakePresets.json").unlink()
    with pytest.raises(RuntimeError) as caught:
        verbena.LibraryFinder.find_library()
    assert "build" not in str(caught.value)


@pytest.mark.parametrize("folder", finder._LIBRARY_FOLDERS)
def test_an_installed_package_finds_what_was_installed_with_it(tree, monkeypatch, folder):
    _make(tree / "prefix/lib/libsample.so")  # another's, in the general place
    beside = _make(tree / "moved" / folder / "libsample.so")
    monkeypatch.setattr(finder, "_PACKAGE", tree / "moved/lib/python3/dist-packages/verbena")
    assert verbena.LibraryFinder.find_library() == beside


@pytest.mark.parametrize("name, find", [("nvshmem", verbena.LibraryFinder.find_nvshmem_device_library),
                                        ("nccl", verbena.LibraryFinder.find_nccl_device_library)])
def test_vendors_bitcode_is_found_in_their_wheels(tree, name, find):
    with pytest.raises(verbena.LibraryNotFound, match=f"lib{name}_device.bc"):
        find()
    path = _make(tree / f"site-packages/nvidia/{name}/lib/lib{name}_device.bc")
    assert find() == path
