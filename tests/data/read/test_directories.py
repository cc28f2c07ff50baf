"""Directories as tools leave them: saved data sets, hub snapshots, and links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.data.read.directories import files_of


def touch(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def saved(directory: Path, names: list[str], **more: object) -> None:
    state = {"_data_files": [{"filename": name} for name in names], **more}
    touch(directory / "state.json", json.dumps(state))
    for name in ("dataset_info.json", "cache-1.arrow", *names):
        touch(directory / name)


def test_a_saved_data_set_is_the_files_that_it_lists(tmp_path: Path) -> None:
    saved(tmp_path / "d", ["data-1.arrow", "data-0.arrow"])
    files, left_out = files_of(tmp_path / "d")
    assert [path.name for path in files] == ["data-1.arrow", "data-0.arrow"]
    assert [Path(name).name for name in left_out] == ["cache-1.arrow", "dataset_info.json", "state.json"]


def test_the_splits_of_a_saved_dictionary(tmp_path: Path) -> None:
    touch(tmp_path / "d" / "dataset_dict.json", '{"splits": ["train"]}')
    saved(tmp_path / "d" / "train", ["data.arrow"])
    assert files_of(tmp_path / "d")[0] == [tmp_path / "d/train/data.arrow"]


@pytest.mark.parametrize("names", [["../a.arrow"], ["/etc/passwd"], []])
def test_a_state_that_names_no_files_of_its_own_is_refused(tmp_path: Path, names: list[str]) -> None:
    touch(tmp_path / "d" / "state.json", json.dumps({"_data_files": [{"filename": name} for name in names]}))
    with pytest.raises(UserError, match=r"state\.json: lists no data files"):
        files_of(tmp_path / "d")


def test_a_selection_of_rows_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "d", ["data.arrow"], _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(UserError, match="flatten_indices"):
        files_of(tmp_path / "d")


def test_a_users_own_state_json_is_a_file_like_others(tmp_path: Path) -> None:
    touch(tmp_path / "d" / "state.json", '{"text": "a"}')
    assert len(files_of(tmp_path / "d")[0]) == 1


def test_a_snapshot_in_the_hubs_cache(tmp_path: Path) -> None:
    blob = touch(tmp_path / "datasets--a" / "blobs" / "123")
    snapshot = tmp_path / "datasets--a" / "snapshots" / "rev"
    touch(snapshot / "dataset_infos.json")
    (snapshot / "train.parquet").symlink_to(blob)
    files, left_out = files_of(snapshot)
    assert files == [snapshot / "train.parquet"]
    assert left_out == [str(snapshot / "dataset_infos.json")]
    outside = touch(tmp_path / "secret.jsonl")
    (snapshot / "other.jsonl").symlink_to(outside)
    with pytest.raises(UserError, match="name the file itself"):
        files_of(snapshot)
