"""Every example of the documentation runs: docstrings, and the programs of docs/python.md, from the page itself."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import syncline

PAGE = Path(__file__).parents[3] / "docs" / "python.md"
README = Path(__file__).parents[1] / "README.md"
MODULES = ["__init__", "_file", "_path", "_ticket", "_transaction", "_volume", "fsspec", "sqlite"]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str, tmp_path: Path) -> None:
    if name == "fsspec":
        pytest.importorskip("fsspec", reason="fsspec is not installed")
    module = syncline if name == "__init__" else importlib.import_module(f"syncline.{name}")
    if name == "sqlite":
        try:
            module.driver()
        except ImportError as error:
            pytest.skip(str(error))
    examples = doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={"tmp": tmp_path})
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in examples:
        runner.run(example)
    assert runner.summarize().failed == 0
    assert runner.tries > 0


def test_everything_public_has_a_docstring() -> None:
    for name in syncline.__all__:
        thing = getattr(syncline, name)
        if not isinstance(thing, type):
            continue
        assert thing.__doc__, name
        for method, value in vars(thing).items():
            if not method.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{method}"


def programs(page: Path) -> list[tuple[int, str, str | None]]:
    """Line, source and output of each program of a page: a block of Python, and a block of text right behind it."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    pattern = re.compile(r"^```python\n(.*?)^```\n(?:\n*```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
    found = pattern.finditer(text)
    return [(text.count("\n", 0, one.start()) + 1, one.group(1), one.group(2)) for one in found]


ALL = [(page, *program) for page in (PAGE, README) for program in programs(page)]


@pytest.mark.parametrize(("page", "line", "source", "output"), ALL, ids=[f"{one[0].name}:{one[1]}" for one in ALL])
def test_programs_of_the_page(page: Path, line: int, source: str, output: str | None, tmp_path: Path) -> None:
    for package in re.findall(r"^\s*(?:import|from) (\w+)", source, re.MULTILINE):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip(package, reason=f"{package} is not installed")
    if "read_parquet" in source:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    if "syncline.sqlite" in source:
        try:
            importlib.import_module("syncline.sqlite").driver()
        except ImportError as error:
            pytest.skip(str(error))
    (tmp_path / "program.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if output is not None:
        assert done.stdout == output


def test_the_page_is_there() -> None:
    assert len(programs(PAGE)) >= 8
