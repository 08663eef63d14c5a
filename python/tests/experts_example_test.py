"""The example of a layer of experts, on emulated GPUs."""
import importlib.util
import pathlib

import pytest

import driver
import verbena
from ranks import run_ranks

pytest.importorskip("torch")
PATH = pathlib.Path(__file__).parents[1] / "examples/experts.py"


def _run(rank):
    driver.use_gpu(rank)
    specification = importlib.util.spec_from_file_location("experts_example", PATH)
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    options = example.read_options(["--tokens", "12", "--hidden", "128", "--intermediate", "64", "--experts", "8", "--top-k", "3", "--blocks", "2"])
    with verbena.SymmetricContext.from_environment() as context:
        return example.run(options, context, "cpu", lambda: driver.call("cuStreamSynchronize", None))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_layer_equals_a_dense_one(size):
    for differences in run_ranks(size, _run):
        assert len(differences) == 1 and differences[0] < 0.01
