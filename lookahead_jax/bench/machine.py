"""On what, and with what, something was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import jax
from jax.sharding import Mesh


def device_name(mesh: Mesh | None) -> str:
    """Kind and number of the devices in use, such as "4 x TPU v5 lite" or "cpu (2 cores)"."""
    devices = [jax.devices()[0]] if mesh is None else list(mesh.devices.flat)
    kind = devices[0].device_kind
    if devices[0].platform == "cpu":
        kind = f"{kind} ({len(os.sched_getaffinity(0))} cores)"
    return kind if len(devices) == 1 else f"{len(devices)} x {kind}"


def versions() -> dict[str, str]:
    """Of this package, of what computes, and of Python."""
    packages = ("lookahead-jax", "jax", "jaxlib")
    found = {name: metadata.version(name) for name in packages}
    return {**found, "python": platform.python_version()}


def commit() -> str | None:
    """The commit of the checkout that this package runs from, "+" behind it where it is changed.

    None where it is installed otherwise, or there is no git.
    """
    place = Path(__file__)

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(place.parent), *arguments],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed copy may lie inside somebody's checkout, which does not know of it.
    if git("ls-files", "--error-unmatch", place.name) is None:
        return None
    name = git("rev-parse", "--short=12", "HEAD")
    return name and name + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
