"""The programs of examples/ do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(example: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_ledger_keeps_its_entries_from_one_run_to_the_next(tmp_path: Path) -> None:
    image = str(tmp_path / "ledger.img")
    assert run("ledger.py", image, "42 coins") == "entries: 1\n"
    assert run("ledger.py", image, "7 coins") == "entries: 2\n"


def test_letters_share_their_flushes(tmp_path: Path) -> None:
    assert run("letters.py", str(tmp_path / "letters.img")) == "letters: 200\nfewer flushes than letters: True\n"


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"ledger.py", "letters.py"}
