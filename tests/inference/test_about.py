"""What is kept with a model for those who talk with it; the file may be anybody's."""

import json
from pathlib import Path

import pytest

from minimind.base.defaults import ABOUT
from minimind.inference.about import About, about_model, write_about


@pytest.mark.parametrize("place", [".", "final"])
def test_a_run_and_an_export_say_what_they_know(tmp_path: Path, place: str) -> None:
    about = About("sums", ("1+1", "二加二"))
    (tmp_path / place).mkdir(exist_ok=True)
    write_about(about, tmp_path / place)
    assert about_model(tmp_path) == about


def test_most_models_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.pth").write_bytes(b"")
    assert about_model(tmp_path) is about_model(tmp_path / "model.pth") is about_model(tmp_path / "none") is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"knows": "x"}', '{"knows": 3, "examples": []}', '{"knows": "x", "examples": [{}]}', "9" * 70000],
)
def test_a_strangers_file_is_said_and_left(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ABOUT).write_text(content)
    assert about_model(tmp_path) is None
    assert str(tmp_path / ABOUT) in capsys.readouterr().err


def test_what_is_said_is_a_line_of_bounded_length(tmp_path: Path) -> None:
    record = {"knows": "a\nb" + "c" * 9999, "examples": ["x\n" * 999] * 9}
    (tmp_path / ABOUT).write_text(json.dumps(record))
    about = about_model(tmp_path)
    assert about and len(about.knows) == 300 and len(about.examples) == 3
    assert not any("\n" in text for text in (about.knows, *about.examples))


@pytest.mark.parametrize(("size", "read"), [(1 << 16, True), ((1 << 16) + 1, False)])
def test_64_kib_are_read_and_no_more(size: int, read: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps({"knows": "sums", "examples": []})
    (tmp_path / ABOUT).write_text(text + " " * (size - len(text)))
    assert about_model(tmp_path) == (About("sums", ()) if read else None)
    assert bool(capsys.readouterr().err) != read
