"""Strict JAX for every test, and the models that several files share."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import fakes
import jax
import pytest
import trace_files
from numpy_llama import NumpyLlama

from lookahead_jax.models.loading import load_model

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


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
