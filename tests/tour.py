"""The tour of the packages in CONTRIBUTING.md: `python tests/tour.py` writes it.

Its order is that of the layers in pyproject.toml, its words are those of each package's docstring.
"""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN = "<!-- tour: written by tests/tour.py -->\n"
END = "<!-- end of the tour -->\n"


def summary(place: Path) -> str:
    """The first sentence of the docstring of a package or a module, without the full stop."""
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).removesuffix(".")


def layers() -> list[list[str]]:
    """Packages of `holdfast` from the top; those of one layer do not import each other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [[each.strip() for each in layer.split("|")] for layer in contract["layers"]]


def rows(name: str, folder: Path) -> list[str]:
    """Rows of a package and of the packages in it."""
    inner = sorted(path.parent for path in folder.glob("*/__init__.py"))
    nested = [f"| &emsp;`{each.name}` | {summary(each)} |" for each in inner]
    return [f"| `{name}` | {summary(folder)} |", *nested]


def tour() -> str:
    """The whole table."""
    table = ["| package | contents |", "|---|---|"]
    table += rows("holdfast_bench", ROOT / "src" / "holdfast_bench")
    for layer in layers():
        for name in layer:
            table += rows(name, ROOT / "src" / "holdfast" / name)
    return "\n".join(table) + "\n"


def page() -> str:
    """CONTRIBUTING.md with the present tour."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + tour() + END + after


if __name__ == "__main__":
    PAGE.write_text(page())
