"""Nobody but `RunFolder` knows what the files of a run are called."""

import ast
from pathlib import Path

import pytest

import verfedsv
from verfedsv.runs import folder

SOURCE = Path(verfedsv.__file__).parent
KNOWING = ("runs", "transcript")
ON_THE_WIRE = SOURCE / "network" / "messages.py"
"""Names of delivered files are part of the protocol; the server's own statement happens to be called the same."""
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] not in KNOWING]


def texts_in_code(path: Path):
    """Yield every string in a module; one that only mentions a file, such as a docstring, differs from its name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def imported(path: Path):
    """Yield what a module imports from the module of `RunFolder`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "verfedsv.runs.folder":
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_other_module_names_a_file_of_a_run(path):
    """Neither as a string nor by importing the constant: commands, report, watch and settlement ask `RunFolder`."""
    files = {*folder.FILES} if path == ON_THE_WIRE else {*folder.FILES, folder.STATEMENT}
    assert not files & set(texts_in_code(path))
    assert set(imported(path)) <= {"RunFolder"}
