"""Groups of options: a command takes a dataclass, typer sees an option for each of its fields."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Spreads every parameter that is a dataclass into its fields, in their place.

    Commands then share options by sharing a dataclass, whose fields are annotated as typer's
    parameters are.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: dict[str, inspect.Parameter] = {}
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters |= {field.name: field for field in _parameters(hints[name])}
        else:
            parameters[name] = parameter.replace(
                annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY
            )

    @functools.wraps(command)
    def spread(**values: Any) -> None:
        for name, group in groups.items():
            names = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in names})
        command(**values)

    spread.__signature__ = inspect.Signature(list(parameters.values()))  # pyright: ignore[reportAttributeAccessIssue]
    spread.__annotations__ = {name: p.annotation for name, p in parameters.items()}
    return spread


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
