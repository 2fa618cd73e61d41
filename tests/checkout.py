"""The checkout's benchmarks, without the rest of the checkout on the path.

There it would hide the installed package.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def benchmark(name):
    """The module `benchmarks.{name}`."""
    if "benchmarks" not in sys.modules:
        place = ROOT / "benchmarks"
        spec = importlib.util.spec_from_file_location(
            "benchmarks", place / "__init__.py", submodule_search_locations=[str(place)]
        )
        sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["benchmarks"])
    return importlib.import_module(f"benchmarks.{name}")
