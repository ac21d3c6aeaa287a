"""The habits of the code base, read from the sources themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "lockstep"
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60

# What each layer may import of ours; a layer is a top-level module or folder of the package.
# The generic parts of a folder that a lower layer may use are named with their dotted path.
GROUND = {"config", "errors", "protocols"}
PARTS = GROUND | {"distributed"}
REQUEST = {"compose", "devices", "layers", "preview", "runs"}
OUTPUT = {"progress", "telemetry"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "protocols": set(),
    "config": {"errors"},
    "telemetry": {"errors"},
    "progress": {"errors"},
    "devices": {"errors"},
    "layers": {"config", "errors"},
    "runs": {"compose", "config", "envs.catalog", "errors", "layers"},
    "preview": {"config"},
    "distributed": {"config", "errors", "protocols"},
    "checkpoint": {"distributed", "errors"},
    "envs": PARTS,
    "agents": PARTS,
    "algorithms": PARTS | {"agents"},
    "workflows": PARTS | {"agents", "envs.wrappers", "algorithms.returns"},
    "compose": {"config", "devices", "errors", "envs.catalog", "layers"},
    "recipes": PARTS | {"agents", "algorithms", "envs", "workflows"},
    "version": set(),
    "host": {"version", "runs", "config", "devices", "distributed", "errors"},
    "results": {"config", "host", "telemetry"},
    "evaluating": PARTS | REQUEST | {"checkpoint", "host", "recipes", "results"},
    "training": PARTS
    | REQUEST
    | OUTPUT
    | {"checkpoint", "evaluating", "host", "recipes", "results"},
    "api": REQUEST | {"config", "errors", "evaluating", "results", "training"},
    "cli": REQUEST | OUTPUT | {"api", "config", "envs.catalog", "errors", "training", "version"},
    "__init__": {"api", "version"},
    "__main__": {"cli"},
}
# Files split off a layer's main file.
SPLIT_OFF = {"schema": "config", "sizes": "config"}
# Loaded by the command line before a request is known to be right.
NO_JAX = [
    "lockstep",
    "lockstep.cli",
    "lockstep.compose",
    "lockstep.config",
    "lockstep.envs.catalog",
]
HEAVY = ["jax", "jaxlib", "torch", "optax", "orbax", "gymnax", "brax", "mujoco", "tensorboardX"]


def sources(*folders: str) -> list[Path]:
    """Return every Python file below the named folders of the repository."""
    return sorted(path for folder in folders for path in (REPO / folder).rglob("*.py"))


def layer_name(name: str) -> str:
    """Return the layer of a top-level module; ``checkpoint_files`` belongs to ``checkpoint``."""
    name = SPLIT_OFF.get(name, name)
    return name if name in MAY_IMPORT else name.split("_")[0]


def layer_of(path: Path) -> str:
    """Return the layer a file belongs to."""
    return layer_name(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every import; ``from a import b`` yields ``a.b``."""
    package = path.relative_to(REPO).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def is_module(parts: list[str]) -> bool:
    """Tell whether the dotted parts below the package name a file or a folder of ours."""
    path = PACKAGE.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def allowed(layer: str, name: str) -> bool:
    """Tell whether ``layer`` may import the dotted ``name`` (``lockstep`` left out)."""
    parts = name.split(".")
    if not is_module(parts[:1]):
        parts = ["__init__"]
    parts[0] = layer_name(parts[0])
    prefixes = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return parts[0] == layer or bool(prefixes & MAY_IMPORT.get(layer, set()))


def test_imports_go_only_downward() -> None:
    wrong = [
        f"{path.relative_to(REPO)}:{line}: {layer_of(path)} imports {name}"
        for path in sources("lockstep")
        for line, name in imports(path)
        if name.split(".")[0] == "lockstep"
        and not allowed(layer_of(path), name.removeprefix("lockstep").lstrip("."))
    ]
    assert wrong == []


def test_every_layer_of_the_package_is_known() -> None:
    assert {layer_of(path) for path in sources("lockstep")} - set(MAY_IMPORT) == set()


def test_the_layers_have_no_cycle() -> None:
    graph = {name: {part.split(".")[0] for part in below} for name, below in MAY_IMPORT.items()}
    graph["cli"].discard("__init__")  # the version; the package itself imports lazily
    while graph:
        leaves = {name for name, below in graph.items() if not below & set(graph)}
        assert leaves, f"these import each other in a circle: {sorted(graph)}"
        graph = {name: below for name, below in graph.items() if name not in leaves}


@pytest.mark.parametrize("module", NO_JAX)
def test_importing_loads_neither_jax_nor_torch(module: str) -> None:
    script = (
        f"import sys, {module}\nprint(sorted(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_no_private_module_of_a_dependency_is_used() -> None:
    wrong = []
    for path in sources("lockstep", "tests", "benchmarks"):
        names = list(imports(path))
        for line, name in names:
            parts = name.split(".")
            ours = parts[0] in ("lockstep", "tests", "__future__")
            if not ours and any(part.startswith("_") for part in parts):
                wrong.append(f"{path.relative_to(REPO)}:{line}: {name}")
        modules = {name.split(".")[0] for _, name in names} - {"lockstep", "tests"}
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in modules
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
                and ast.unparse(node) != "os._exit"  # documented in spite of its name
            ):
                wrong.append(f"{path.relative_to(REPO)}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def test_files_and_functions_stay_short() -> None:
    long = []
    for path in sources("lockstep", "tests", "benchmarks"):
        text = path.read_text()
        if text.count("\n") > MAX_FILE_LINES:
            long.append(f"{path.relative_to(REPO)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    where = f"{path.relative_to(REPO)}:{node.lineno}"
                    long.append(f"{where}: {node.name} has {lines} lines")
    assert long == []


def asserts(function: ast.FunctionDef) -> bool:
    """Tell whether a test holds an assertion, its own or of a helper named after one."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            if name in ("raises", "warns") or name.startswith(("assert_", "check_", "expect_")):
                return True
    return False


def test_every_test_asserts_something() -> None:
    silent = [
        f"{path.relative_to(REPO)}:{node.lineno}: {node.name}"
        for path in sources("tests")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not asserts(node)
    ]
    assert silent == []


def undocumented(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    """Yield the public functions and classes of a module or class body without a docstring."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield f"{prefix}{node.name} (line {node.lineno})"
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
            if "Protocol" not in bases:
                yield from undocumented(node.body, f"{prefix}{node.name}.")


def test_everything_public_has_a_docstring() -> None:
    missing = []
    for path in sources("lockstep"):
        tree = ast.parse(path.read_text())
        where = f"{path.relative_to(REPO)}: "
        if not ast.get_docstring(tree):
            missing.append(where + "the module")
        missing += undocumented(tree.body, where)
    assert missing == []
