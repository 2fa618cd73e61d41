"""Strict JAX for every test, and the models that several files share."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Meshes are tested on eight devices of one CPU; what does not ask for them has the first.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
# Two test processes may compile for TPUs at once: no TPU is opened, so there is nothing to guard.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import fakes
import jax
import pytest
import trace_files
from numpy_llama import NumpyLlama

from lookahead_jax.models.loading import load_model

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


OPTIMISED = {
    "test_demo_exactness",
    "test_demo_sampling",
    "test_demo_model",
    "test_gemma",
    "test_readme_demo",
    "test_round_cost",
    "test_state",
    "test_tpu_aot",
    "test_traces",
}
"""Files that run for long, or that read the compiled program."""


@pytest.fixture(scope="module", autouse=True)
def quick_compilation(request):
    """Elsewhere programs run for milliseconds, and compile in half the time without optimising."""
    quick = request.module.__name__.rpartition(".")[2] not in OPTIMISED
    jax.config.update("jax_disable_most_optimizations", quick)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def tiny():
    """The tiny Llama of the traces: a real transformer whose text hardly repeats."""
    return load_model(trace_files.TINY_MODEL, progress=lambda done, total: None)


@pytest.fixture(scope="session")
def numpy_tiny():
    """The same weights in plain numpy."""
    return NumpyLlama(trace_files.TINY_MODEL)


@pytest.fixture(scope="session")
def toy():
    """The toy model of fakes.py."""
    return fakes.toy_model()
