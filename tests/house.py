"""Measures of the house: `python tests/house.py` prints them, and fails if one is over its limit.

They say how hard the sources are to own: how much there is, how it is spread over folders, and how
it reads. A limit that is in the way is changed here, on purpose.
"""

import ast
import re
import sys
from collections import Counter
from pathlib import Path

SRC = Path(__file__).parent.parent / "src"
PRODUCT = "holdfast"
COMMANDS = f"{PRODUCT}.cli."
ENGINE = tuple(
    f"{PRODUCT}.{each}." for each in ("core", "collectives", "worker", "arena", "checkpoint")
)
ENTRIES = ("worker.main", "agent.main", "coordinator.main", "launch.fork_server", "api.train")
QUESTION = re.compile(
    r"(What|Whether|How|Where|Which|When|Whose|Who|Of|Those|As|See|That|The same)\b"
)
TAKES_JOB = re.compile(r"\bjob: (TrainJob|TrainRequest|Job|ReadJob)\b")

Sources = dict[str, ast.Module]


def sources(package: str) -> Sources:
    """The syntax trees of a package by the names of their modules."""
    found = {}
    for path in sorted((SRC / package).rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text())
    return found


def lines_of(module: str) -> list[str]:
    """The lines of a module's file."""
    path = SRC / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text().splitlines()


def imports_of(tree: ast.Module, known: Sources) -> set[str]:
    """The modules of the house that a module imports, at once or late."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found & known.keys()


def reached(entries: list[str], imports: dict[str, set[str]]) -> set[str]:
    """The modules that processes with these entries import, sooner or later."""
    found, todo = set(), entries
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo.extend(imports[module])
    return found


def docstrings(trees: Sources) -> list[str]:
    """All docstrings of modules, classes and functions."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, kinds))
    return [text for node in nodes if (text := ast.get_docstring(node))]


def is_packed(node: ast.AST) -> bool:
    """True for an assignment of unrelated values in one line; a swap is none."""
    if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)):
        return False
    if not isinstance(node.value, ast.Tuple):
        return False
    names = [ast.unparse(each) for each in node.targets[0].elts]
    return sorted(names) != sorted(ast.unparse(each) for each in node.value.elts)


def repeated(names: list[str]) -> int:
    """How many names stand for several things."""
    return sum(count > 1 for count in Counter(names).values())


def table() -> list[tuple[str, float, float]]:
    """Each measure: its name, its value and its limit."""
    trees = sources(PRODUCT)
    modules = [name for name in trees if not (SRC / name.replace(".", "/")).is_dir()]
    texts = {name: lines_of(name) for name in trees}
    sizes = {name: len(text) for name, text in texts.items()}
    imports = {name: imports_of(tree, trees) for name, tree in trees.items()}
    importers = Counter(each for name in trees for each in imports[name] - {name})
    in_runs = reached([f"{PRODUCT}.{entry}" for entry in ENTRIES], imports)
    folders = Counter(name.rpartition(".")[0] for name in modules)
    engine = [name for name in trees if name.startswith(ENGINE)]
    thousands = sum(sizes[name] for name in engine) / 1000
    comments = sum(line.lstrip().startswith("# ") for name in engine for line in texts[name])
    packed = sum(is_packed(node) for name in engine for node in ast.walk(trees[name]))
    classes = [n.name for t in trees.values() for n in t.body if isinstance(n, ast.ClassDef)]
    # a command is named after what it shows, and so is its module
    leaves = [name.rpartition(".")[2] for name in modules if not name.startswith(COMMANDS)]
    takes_job = sum(any(map(TAKES_JOB.search, text)) for text in texts.values())
    outside = sum(size for name, size in sizes.items() if name not in in_runs)
    benchmarks = sum(len(lines_of(name)) for name in sources("holdfast_bench"))
    return [
        ("lines of the product", sum(sizes.values()), 92_990),
        ("  of these in no process of a run", outside, 24_060),
        ("lines of the benchmarks", benchmarks, 19_450),
        ("most modules in a folder", max(folders.values()), 18),
        ("modules imported by one other", sum(n == 1 for n in importers.values()), 193),
        ("most lines of a module", max(sizes.values()), 500),
        ("packed assignments per 1,000 lines of the engine", packed / thousands, 0.5),
        ("comment lines per 1,000 lines of the engine, at least", -comments / thousands, -19),
        ("% of docstrings that begin with a question word", share(docstrings(trees)), 0.2),
        ("class names for several things", repeated(classes), 11),
        ("module names for several things", repeated(leaves), 41),
        ("modules that take the whole job", takes_job, 35),
    ]


def share(spoken: list[str]) -> float:
    """Percentage of docstrings that begin with a question word."""
    return 100 * sum(bool(QUESTION.match(text)) for text in spoken) / len(spoken)


if __name__ == "__main__":
    rows = table()
    for name, value, limit in rows:
        mark = "" if value <= limit else "  over the limit"
        print(f"{name:55} {abs(value):>8,.1f} {abs(limit):>8,}{mark}")
    sys.exit(any(value > limit for _, value, limit in rows))
