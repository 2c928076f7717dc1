"""The corpus that every Python carries: the docstrings of its standard library and the topics of `help()`.

The sources are parsed and never imported, so nothing of the library runs. The text differs a little between versions of
Python; `checksum` tells which one it was.
"""

import ast
import functools
import hashlib
import inspect
import os
import sysconfig
import warnings

from input_pipeline.errors import UserError

# Tests are no documentation; what is installed next to the library does not belong to it.
_LEFT_OUT = {"__pycache__", "dist-packages", "idle_test", "pydoc_data", "site-packages", "test", "tests"}


@functools.cache
def documents() -> tuple[str, ...]:
    """The documents (about 700, 2 million characters), always in the same order: a module each, then a help topic each.

    Raises:
      UserError: when this Python comes without the sources of its library.
    """
    library = sysconfig.get_path("stdlib")
    texts = [_docstrings(path) for path in _modules(library)]
    texts += _topics(os.path.join(library, "pydoc_data", "topics.py"))
    found = tuple(filter(None, texts))
    if len(found) < 2:
        raise UserError(
            f"--input_file=builtin: this Python has no library sources in {library}; name a text file instead"
        )
    return found


def checksum() -> str:
    """SHA-256 (hex) of all documents."""
    return hashlib.sha256("\0".join(documents()).encode("utf-8", "surrogatepass")).hexdigest()


def _modules(library: str) -> list[str]:
    paths = []
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
        paths += [os.path.join(folder, name) for name in names if name.endswith(".py")]
    return sorted(paths)


def _parse(path: str) -> ast.Module:
    try:
        with open(path, "rb") as file, warnings.catch_warnings(action="ignore"):  # of invalid escapes in the sources
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):  # a template, or a file for another version of Python
        return ast.Module([], [])


def _docstrings(path: str) -> str:
    """The docstrings of a module with those of its classes and functions, in the order of the source."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(_parse(path)) if isinstance(node, documented)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    found = [ast.get_docstring(node) for node in nodes]
    return "\n\n".join(text.strip() for text in found if text and text.strip())


def _topics(path: str) -> list[str]:
    for node in _parse(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics = ast.literal_eval(node.value)
            return [inspect.cleandoc(topics[name]).strip() for name in sorted(topics)]
    return []
