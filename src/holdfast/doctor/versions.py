"""Versions: of Python and of the packages that holdfast needs, against what it declares."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from holdfast.doctor.finding import Finding, fault, ok

DISTRIBUTION = "holdfast"


def installed() -> dict[str, str]:
    """Python's version, and those of holdfast and of the packages that it needs, by name."""
    needed = (each.name for each in _requirements())
    names = sorted({DISTRIBUTION, *needed}, key=str.lower)
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def versions() -> list[Finding]:
    """Check that what is installed satisfies what holdfast declares."""
    own = metadata.metadata(DISTRIBUTION)
    return [python(str(own["Requires-Python"] or "")), packages(installed())]


def python(wanted: str) -> Finding:
    """Check that this Python is new enough."""
    found = f"{platform.python_version()} ({sys.executable})"
    if not SpecifierSet(wanted).contains(platform.python_version(), prereleases=True):
        return fault("python", f"{found}, not {wanted}", f"install Python {wanted}")
    return ok("python", found)


def packages(found: Mapping[str, str]) -> Finding:
    """Check that all packages are there, in versions that holdfast works with."""
    wrong = [
        f"{each.name} {found[each.name] or 'missing'}, not {each.specifier}"
        for each in _requirements()
        if not each.specifier.contains(found[each.name] or "0", prereleases=True)
    ]
    if wrong:
        return fault(
            "packages", "; ".join(wrong), "install holdfast again into this environment with pip"
        )
    main = {name: found[name] for name in ("holdfast", "torch", "numpy") if name in found}
    return ok("packages", ", ".join(f"{name} {version}" for name, version in main.items()))


def _requirements() -> list[Requirement]:
    """Requirements of holdfast on this platform, without its extras."""
    every = map(Requirement, metadata.requires(DISTRIBUTION) or ())
    return [each for each in every if each.marker is None or each.marker.evaluate({"extra": ""})]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
