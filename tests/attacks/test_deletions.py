"""Every place that deletes, replaces or moves (docs/files.md): a file of the user's in it survives, and a link is not
followed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from minimind import cli
from minimind.base.errors import UserError
from minimind.base.files import remove_files
from minimind.commands.report import write_report
from minimind.config.model import ModelConfig
from minimind.corpus.corpus import write_demo
from minimind.data.records.rejects import Tally
from minimind.data.store.prepare import prepare
from minimind.data.store.store import StoreWriter, TokenStore, _building_prefix
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer
from minimind.training.checkpoint.directory import all_checkpoints, clean_up, problem, remove_debris
from minimind.training.engine.builds import clear
from minimind.training.record.file import MetricsFile, to_line
from tests.attacks.traps import SECRET, Victim
from tests.support import fake_saver, save_steps


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIMIND_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim.make(tmp_path / "mine")


@pytest.fixture
def tokenizer(files: dict[str, Path]) -> Tokenizer:
    return Tokenizer.load(files["tokenizer"])


def snapshot(directory: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(directory)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in directory.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def quiet(line: str) -> None:
    del line


WEB_APPLICATION = {"manifest.json": '{"name": "app", "version": 1, "files": {}}', "index.html": "<html>"}
CHECKPOINT = {"manifest.json": '{"step": 1, "files": {}, "seal": ""}', "engine/mp_rank_00_model_states.pt": "w"}
EXTENSION = {"manifest.json": '{"manifest_version": 3, "version": "1", "kind": "pretrain"}', "tokens.bin": "mine"}


@pytest.mark.parametrize("content", [WEB_APPLICATION, CHECKPOINT, EXTENSION, {"manifest.json": "{}"}, {"a": "b"}])
def test_prepare_replaces_nothing_but_a_store(
    content: dict[str, str], tmp_path: Path, files: dict[str, Path], tokenizer: Tokenizer
) -> None:
    place = tmp_path / "place"
    for name, text in content.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    before = snapshot(place)
    with pytest.raises(UserError, match="exists and is no token store"):
        prepare([files["pretrain"]], tokenizer, place, say=quiet)
    assert snapshot(place) == before


@pytest.mark.parametrize("change", ["file", "directory", "link", "version", "kind", "renamed"])
def test_an_old_store_with_anything_else_about_it_stays(
    change: str, tmp_path: Path, files: dict[str, Path], tokenizer: Tokenizer, victim: Victim
) -> None:
    place = prepare([files["sft"]], tokenizer, tmp_path / "store", "sft", say=quiet)
    manifest = json.loads((place / "manifest.json").read_text())
    if change == "file":
        (place / "notes.txt").write_text("mine")
    elif change == "directory":
        (place / "tokens").mkdir()
    elif change == "link":
        victim.plant(place, ["tokens.bin"])
    elif change == "renamed":
        (place / "bytes.npy").rename(place / "bytes.old")
    else:
        manifest[change] = 99
        (place / "manifest.json").write_text(json.dumps(manifest))
    before = snapshot(place)
    with pytest.raises(UserError, match="no token store, or holds more than one"):
        prepare([files["pretrain"]], tokenizer, place, say=quiet)
    assert snapshot(place) == before
    victim.assert_unharmed(place)


def test_the_neighbours_of_an_output_stay(
    tmp_path: Path, files: dict[str, Path], tokenizer: Tokenizer, victim: Victim
) -> None:
    """Names that were deleted or moved onto: STORE.new, half-built stores, and a list that is not of rejects."""
    place = prepare([files["sft"]], tokenizer, tmp_path / "store", "sft", say=quiet)
    (tmp_path / "store.new").mkdir()
    (tmp_path / "store.new" / "thesis.txt").write_text("mine")
    dead = tmp_path / f"{_building_prefix(place)}999999999-0123abcd"
    dead.mkdir()
    (dead / "thesis.txt").write_text("mine")
    (dead / "tokens.bin").write_text("half of a store")
    victim.plant(tmp_path, directories=[f"{_building_prefix(place)}999999999-0123abce"])
    (tmp_path / f"{_building_prefix(place)}999999999-notes").mkdir()
    prepare([files["pretrain"]], tokenizer, place, say=quiet)
    assert TokenStore.open(place).kind == "pretrain"
    assert (tmp_path / "store.new" / "thesis.txt").read_text() == "mine"
    assert [path.name for path in dead.iterdir()] == ["thesis.txt"]
    assert (tmp_path / f"{_building_prefix(place)}999999999-notes").is_dir()
    victim.assert_unharmed()


def test_a_writer_that_gives_up_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", 100)
    (building,) = tmp_path.iterdir()
    (building / "thesis.txt").write_text("mine")
    writer.abort()
    assert [path.name for path in building.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("content", "ours"),
    [
        ("", True),
        ("thesis", False),
        ('{"file": 1}', False),
        ('{"file": "a", "line": 1, "reason": "r", "too_long": false, "excerpt": ""}\\n', True),
    ],
)
def test_a_list_of_rejects_is_known_by_what_it_holds(content: str, ours: bool, tmp_path: Path) -> None:
    place = tmp_path / "store.rejected.jsonl"
    place.write_text(content.replace("\\n", "\n"))
    if ours:
        with Tally(False, 0.0, place):
            assert not place.exists()
    else:
        with pytest.raises(UserError, match="no list of rejects"), Tally(False, 0.0, place):
            pass
        assert place.read_text() == content


def test_pruning_deletes_checkpoints_files_only(tmp_path: Path, victim: Victim) -> None:
    save_steps(tmp_path, 1, 2, 3)
    directory = tmp_path / "checkpoints"
    (directory / "step-00000001" / "notes.txt").write_text("mine")
    (directory / "step-00000000").mkdir()
    (directory / "step-00000000" / "results.csv").write_text("mine")
    (directory / "step-two").mkdir()
    victim.plant(directory, directories=["step-00000100"])
    victim.plant(directory / "step-00000002", ["engine/extra.pt"])
    assert [checkpoint.step for checkpoint in all_checkpoints(tmp_path)] == [3, 2, 1, 0]
    for _ in range(2):  # each says which directory it could not empty
        with pytest.raises(FileExistsError, match="not a checkpoint's, which was kept"):
            clean_up(tmp_path, 1, set())
    clean_up(tmp_path, 1, set())
    kept = {"step-00000003", "step-00000000", "step-two", "step-00000100", "other-step-00000001-1"}
    assert {path.name for path in directory.iterdir()} == kept | {"other-step-00000002-1"}
    assert [path.name for path in (directory / "other-step-00000001-1").iterdir()] == ["notes.txt"]
    assert (directory / "step-00000000" / "results.csv").read_text() == "mine"
    assert (directory / "other-step-00000002-1" / "engine" / "extra.pt").is_symlink()
    victim.assert_unharmed()


def test_a_damaged_manifest_is_pruned_where_all_files_are_deepspeeds(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    (tmp_path / "checkpoints" / "step-00000001" / "manifest.json").write_text("{")
    clean_up(tmp_path, 1, set())
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


def test_debris_goes_and_what_lies_in_it_stays(tmp_path: Path, victim: Victim) -> None:
    directory = tmp_path / "checkpoints"
    half = directory / ".incomplete-step-00000007"
    (half / "engine").mkdir(parents=True)
    (half / "engine" / "mp_rank_00_model_states.pt").write_text("half")
    (half / "notes.txt").write_text("mine")
    victim.plant(directory, directories=[".incomplete-step-00000008", ".incomplete-x"])
    (directory / ".incomplete-thesis").mkdir()
    remove_debris(tmp_path)
    names = {path.name for path in directory.iterdir()}
    assert names == {".incomplete-step-00000007", ".incomplete-x", ".incomplete-thesis"}
    assert [path.name for path in half.iterdir()] == ["notes.txt"]
    saver = fake_saver(tmp_path, 10)
    saver.save(7, {}, {"world_size": 1})
    assert saver.finish() and not saver.poll()  # the save goes on, beside what was there
    assert problem(directory / "step-00000007") is None
    assert (directory / "step-00000007" / "notes.txt").read_text() == "mine"
    victim.assert_unharmed()


def test_a_save_where_something_else_has_the_name(tmp_path: Path, victim: Victim) -> None:
    directory = tmp_path / "checkpoints"
    victim.plant(directory, directories=["step-00000001"])
    (directory / "step-00000002").mkdir()
    (directory / "step-00000002" / "results.csv").write_text("mine")
    save_steps(tmp_path, 1, 2)
    assert (directory / "other-step-00000002-1" / "results.csv").read_text() == "mine"
    assert (directory / "other-step-00000001-1").is_symlink()
    assert problem(directory / "step-00000001") is None
    victim.assert_unharmed()


def test_checkpoints_that_are_a_link_are_not_written_through(tmp_path: Path, victim: Victim) -> None:
    run = tmp_path / "run"
    victim.plant(run, directories=["checkpoints"])
    (victim.directory / "step-00000001").mkdir()
    assert all_checkpoints(run) == []
    remove_debris(run)
    (victim.directory / "step-00000001").rmdir()
    victim.assert_unharmed()


def test_metrics_of_an_earlier_run_are_renamed_and_a_link_with_them(tmp_path: Path, victim: Victim) -> None:
    run = tmp_path / "run"
    victim.plant(run, ["metrics.jsonl", "metrics.1.jsonl"])
    with pytest.raises(OSError, match="not followed"):
        MetricsFile(run / "metrics.jsonl", resumed_step=3)
    file = MetricsFile(run / "metrics.jsonl", resumed_step=None)
    file.append({"kind": "train", "step": 1})
    file.close()
    assert (run / "metrics.2.jsonl").is_symlink()
    victim.assert_unharmed()


def test_a_second_name_of_a_file_is_not_written_to(tmp_path: Path, victim: Victim) -> None:
    """A hard link is no link to be seen: what would be appended to must have one name."""
    from minimind.base.files import append_to, lock_file

    for opened, name in ((append_to, "a"), (lock_file, "b")):
        (tmp_path / name).hardlink_to(victim.file)
        with pytest.raises(OSError, match="has another name too"):
            opened(tmp_path / name)
    victim.assert_unharmed()


@pytest.fixture
def model() -> tuple[dict[str, torch.Tensor], ModelConfig]:
    config = ModelConfig.preset("tiny", vocab_size=330, hidden_size=32, num_hidden_layers=1, head_dim=8)
    return Transformer(config).state_dict(), config


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_export_replaces_an_export_only(
    name: str, tmp_path: Path, tokenizer: Tokenizer, model: tuple[dict[str, torch.Tensor], ModelConfig]
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / name).write_text('{"model_type": "llama", "port": 80}')
    with pytest.raises(UserError, match=f"holds {name}, which no export of this program made"):
        save_pretrained(*model, tokenizer, tmp_path / "app")
    assert (tmp_path / "app" / name).read_text() == '{"model_type": "llama", "port": 80}'
    save_pretrained(*model, tokenizer, tmp_path / "ours")
    (tmp_path / "ours" / "README.md").write_text("mine")
    save_pretrained(*model, tokenizer, tmp_path / "ours")
    (tmp_path / "ours" / "config.json").unlink()  # as a kill leaves it
    save_pretrained(*model, tokenizer, tmp_path / "ours")
    assert (tmp_path / "ours" / "README.md").read_text() == "mine"


def test_the_corpus_replaces_a_corpus_only(tmp_path: Path) -> None:
    sizes = {"num_pretrain": 2, "num_sft": 2, "num_eval": 2, "num_sft_eval": 2}
    (tmp_path / "pretrain.jsonl").write_text(SECRET)
    with pytest.raises(UserError, match=r"pretrain\.jsonl: is there"):
        write_demo(tmp_path, **sizes)
    assert (tmp_path / "pretrain.jsonl").read_text() == SECRET
    (tmp_path / "pretrain.jsonl").unlink()
    write_demo(tmp_path, **sizes)
    write_demo(tmp_path, seed=1, **sizes)


def test_a_report_replaces_a_report_only(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(to_line({"kind": "run"}))
    (tmp_path / "report.html").write_text("<html>mine")
    with pytest.raises(UserError, match=r"report\.html: is there and is no report"):
        write_report([tmp_path])
    assert (tmp_path / "report.html").read_text() == "<html>mine"
    write_report([tmp_path], tmp_path / "report.html")  # named: it may be replaced
    assert write_report([tmp_path]).read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("place", ["/dev/stdout", "/dev/null"])
def test_a_device_is_not_replaced(place: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(to_line({"kind": "run"}))
    with pytest.raises(UserError, match="can't write the report: no regular file"):
        write_report([tmp_path], Path(place))
    assert (Path(place).exists() and not Path(place).is_file()) or Path(place).is_symlink()


def test_the_demo_deletes_nothing(
    tmp_path: Path, victim: Victim, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from minimind.commands import demo as demo_run

    monkeypatch.setattr(demo_run, "_prepare", lambda directory: (directory / "data", directory / "tokenizer"))
    monkeypatch.setattr(demo_run, "_run", lambda command, run_dir: 7)
    (tmp_path / "pretrain" / "final").mkdir(parents=True)
    (tmp_path / "pretrain" / "thesis.txt").write_text("mine")
    assert cli.run(["demo", "--directory", str(tmp_path)], False) == 7
    assert (tmp_path / "pretrain" / "thesis.txt").read_text() == "mine"
    assert (tmp_path / "pretrain" / "earlier-1" / "final").is_dir()
    victim.plant(tmp_path, directories=["sft"])
    assert cli.run(["demo", "--directory", str(tmp_path)], False) == 2
    assert "a symbolic link, which is not followed" in capfd.readouterr().err
    victim.assert_unharmed()


def test_a_compilers_lock_is_an_empty_file(tmp_path: Path, victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    directory = tmp_path / "extensions" / "cpu_adam"
    directory.mkdir(parents=True)
    (directory / "cpu_adam.so").touch()
    (directory / "lock").write_text("my notes")
    os.utime(directory / "lock", (1, 1))
    with pytest.raises(UserError, match="torch did not write"):
        clear(directory, quiet)
    assert (directory / "lock").read_text() == "my notes"
    (directory / "lock").write_text("")
    os.utime(directory / "lock", (1, 1))
    clear(directory, quiet)
    assert not (directory / "lock").exists()


def test_remove_files_follows_nothing(tmp_path: Path, victim: Victim) -> None:
    place = tmp_path / "place"
    victim.plant(place, ["file"], ["directory"])
    (place / "ours").write_text("")
    assert not remove_files(place, lambda name: True)
    assert {path.name for path in place.iterdir()} == {"file", "directory"}
    (tmp_path / "link").symlink_to(victim.directory)
    assert not remove_files(tmp_path / "link", lambda name: True)
    victim.assert_unharmed()
