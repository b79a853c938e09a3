"""Nobody but `RunFolder` knows what the files of a run are called."""

import ast
from pathlib import Path

import pytest

import verfedsv
from verfedsv.runs import folder

SOURCE = Path(verfedsv.__file__).parent
KNOWING = ("runs", "transcript")
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] not in KNOWING]


def texts_in_code(path: Path):
    """Yield every text in a module; a docstring or a sentence that mentions a file is never its name alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def imported(path: Path):
    """Yield what a module imports from `RunFolder`'s module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "verfedsv.runs.folder":
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_other_module_names_a_file_of_a_run(path):
    """Neither as a text of its own, nor by importing the constant: commands, report, watch and settlement ask."""
    files = {*folder.FILES, folder.STATEMENT}
    assert not files & set(texts_in_code(path))
    assert set(imported(path)) <= {"RunFolder"}
