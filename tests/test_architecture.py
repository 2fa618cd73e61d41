"""Who may import whom, what is never imported, and what the wheel holds."""

import ast
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [
    {"errors"},
    {"typing", "config", "sharding", "hardware", "model_shape", "json_lines"},
    {"layout", "cost", "window", "pool", "kv_cache", "noise", "filters", "processors"},
    {"sampling", "sequences", "prompts", "results", "text", "shards"},
    {"attention", "verify", "prefill", "options", "stopping", "deployment"},
    {"validation", "programs", "roofline", "planning"},
    {"decoding", "batch"},
    {"scheduling", "streaming", "parallel"},
    {"generation"},
    {"autoregressive", "jacobi", "chat"},
    {"checking"},
    {"heat_map"},
    {"bench"},
    {"__init__"},
    {"cli"},
]
"""Modules of the package, lowest first; a module imports from lower layers only."""
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}
MODELS_MAY_USE = {"typing", "errors", "kv_cache", "attention", "sharding", "model_shape"}
NEVER = {"torch", "flax.nnx", "jax.experimental.shard_map", "pickle"}


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(path, *, lazy=True, types=False):
    """Absolute names that a file imports; inside functions only if `lazy`."""
    found = []

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: imports are absolute"
                found.extend(f"{child.module}.{alias.name}" for alias in child.names)
            elif is_type_checking(child) and not types:
                for other in child.orelse:
                    visit(other)
            elif lazy or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def sources(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def module_of(path):
    return path.relative_to(ROOT / "lookahead_jax").with_suffix("").parts[0]


def own_modules(names):
    """The package's own modules among imported names, by their first part."""
    found = set()
    for name in names:
        top, _, rest = name.partition(".")
        if top == "lookahead_jax":
            first = rest.partition(".")[0]
            path = ROOT / "lookahead_jax" / first
            is_module = path.with_suffix(".py").exists() or path.is_dir()
            found.add(first if first and (is_module or first == "models") else "__init__")
    return found


def test_every_module_has_its_layer():
    assert {module_of(path) for path in sources("lookahead_jax")} <= set(RANK)


@pytest.mark.parametrize("path", sources("lookahead_jax"), ids=lambda path: path.stem)
def test_modules_import_from_lower_layers_only(path):
    module = module_of(path)
    for other in own_modules(imports(path)) - {module}:
        if module == "cli" and other == "models":
            continue
        assert RANK[other] < RANK[module], f"{module} imports {other}"


@pytest.mark.parametrize("path", sources("lookahead_jax"), ids=lambda path: path.stem)
def test_only_the_command_line_imports_models_and_only_when_it_needs_them(path):
    command_line = module_of(path) == "cli"
    names = imports(path, lazy=not command_line, types=not command_line)
    assert "models" not in own_modules(names)


@pytest.mark.parametrize("path", sources("models"), ids=lambda path: path.stem)
def test_models_know_the_model_protocol_only(path):
    assert own_modules(imports(path, types=True)) <= MODELS_MAY_USE | {"models"}


@pytest.mark.parametrize(
    "path", [*sources("lookahead_jax"), *sources("models")], ids=lambda path: path.stem
)
def test_what_is_never_imported(path):
    names = imports(path, types=True)
    assert not {bad for bad in NEVER for name in names if f"{name}.".startswith(f"{bad}.")}
    assert ".nnx" not in path.read_text(encoding="utf-8")


def test_the_checks_above_can_fail(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "from flax import nnx\n"
        "if TYPE_CHECKING:\n    import torch.nn\n"
        "def f():\n    from lookahead_jax.models import load_model\n"
    )
    assert "flax.nnx" in imports(path)
    assert "torch.nn" not in imports(path)
    assert "torch.nn" in imports(path, types=True)
    assert own_modules(imports(path)) == {"models"}
    assert own_modules(imports(path, lazy=False)) == set()


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_subpackage_is_listed():
    """An unlisted one imports from an editable install and is missing from the wheel."""
    setuptools = project()["tool"]["setuptools"]
    places = {"lookahead_jax": "lookahead_jax", "models": "lookahead_jax.models"}
    found = set()
    for folder, package in places.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join([package, *inner]))
        for path in sources(folder):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} is not a package"
    assert set(setuptools["packages"]) == found
    for folder, package in places.items():
        assert setuptools["package-dir"][package] == folder


def run_elsewhere(code, cwd, *, path=None):
    """Runs Python away from the checkout; `path` comes first on its module path."""
    before = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    return subprocess.run(
        [sys.executable, "-c", before + code],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_algorithm_is_imported_without_models(tmp_path):
    code = (
        "import sys, lookahead_jax\n"
        "heavy = {'lookahead_jax.models', 'flax', 'transformers', 'torch', 'typer', 'gguf'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = run_elsewhere(code, tmp_path)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


@pytest.mark.slow
def test_the_wheel_holds_all_of_it(tmp_path):
    """Built from a copy of the sources, unpacked and imported away from the checkout."""
    source, target = tmp_path / "source", tmp_path / "wheel"
    for folder in ("lookahead_jax", "models"):
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this environment has no pip to build a wheel with")
    try:
        version = importlib.metadata.version("setuptools")
        recent = int(version.partition(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        recent = False
    # Without a recent setuptools here, pip downloads one to build with.
    options = ["--no-build-isolation"] if recent else []
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", *options, "-w", str(target)]
    built = subprocess.run(
        [*command, str(source)], capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.endswith(".py")}
        assert "lookahead_jax/bench/builtin.jsonl" in archive.namelist()
        archive.extractall(tmp_path / "unpacked")
    expected = {str(path.relative_to(ROOT)) for path in sources("lookahead_jax")}
    expected |= {
        str(Path("lookahead_jax/models") / path.relative_to(ROOT / "models"))
        for path in sources("models")
    }
    assert names == expected

    modules = [name.removesuffix(".py").removesuffix("/__init__") for name in sorted(names)]
    code = (
        "import importlib\n"
        f"for name in {[m.replace('/', '.') for m in modules]}:\n"
        "    module = importlib.import_module(name)\n"
        "    assert 'unpacked' in module.__file__, module.__file__\n"
    )
    done = run_elsewhere(code, tmp_path, path=tmp_path / "unpacked")
    assert done.returncode == 0, done.stderr
