"""Results of benchmarks as lines of JSON, with what they were measured on."""

import datetime
import importlib.metadata
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "libtpu", "torch", "transformers", "keras", "keras-hub")


def threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def machine() -> str:
    """The processor and how many cores of it there are."""
    name = platform.processor() or platform.machine()
    if (file := Path("/proc/cpuinfo")).exists() and (
        found := re.search(r"^model name\s*: (.*)", file.read_text(), re.M)
    ):
        name = found[1]
    return f"{name}, {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    """Of Python and of the packages that are here."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def add(output_file: str | None, result: dict[str, Any]) -> None:
    """Adds a line to a file, if there is one to be written, with date, machine and versions."""
    if not output_file:
        return
    today = datetime.date.today().isoformat()
    path = Path(output_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"date": today, "machine": machine(), "versions": versions(), **result}) + "\n")


def last(path: Path) -> dict[str, Any] | None:
    """The last result in a file; None where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return json.loads(lines[-1]) if lines else None
