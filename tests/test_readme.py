"""README.md, README.zh.md and docs/: every command parses, every file named exists, both languages say the same."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from minimind.cli import app
from minimind.config.run import load_run_config
from minimind.training.run.arguments import parse

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
PAGES = [*READMES, *sorted((ROOT / "docs").glob("*.md"))]
CONFIGS = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ds_configs").glob("*.json")}
TRANSCRIPT = re.compile(r"<!-- transcript:begin -->\n(.*?)\n<!-- transcript:end -->", re.DOTALL)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def prose(page: Path) -> str:
    """A page without its transcript, which is a program's output."""
    return TRANSCRIPT.sub("", page.read_text(encoding="utf-8"))


def shell_lines(page: Path) -> list[str]:
    """The lines of the page's `sh` blocks, comments and line continuations taken out."""
    blocks = [body for language, body in FENCE.findall(prose(page)) if language == "sh"]
    lines = [re.sub(r"\s+#.*", "", line) for body in blocks for line in body.replace("\\\n", " ").splitlines()]
    return [line.strip() for line in lines if line.strip()]


def spans(page: Path) -> list[str]:
    """Inline code, in order."""
    return SPAN.findall(FENCE.sub("", prose(page)))


def commands(page: Path, name: str) -> list[list[str]]:
    """Every command line of the page that starts with ``name`` and has arguments, as words."""
    written = [*shell_lines(page), *spans(page)]
    return [shlex.split(line) for line in written if line.startswith(f"{name} ")]


def parsed_launch(words: list[str]) -> Namespace:
    """The script's options as its own parser reads them, behind the launcher's."""
    from deepspeed.launcher.runner import parse_args

    launcher = parse_args(words[1:])
    script = Path(launcher.user_script)
    assert (ROOT / script).is_file() and script.parent == Path("launch"), words
    if script.stem == "lr_sweep":
        from minimind.training.sweep import options as lr_options

        return lr_options.parse(launcher.user_args)
    kind: Any = script.stem
    return parse(kind, launcher.user_args)


@pytest.mark.slow  # the launcher's parser comes with the whole of deepspeed
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_launch_lines_parse(page: Path) -> None:
    for words in commands(page, "deepspeed"):
        options = parsed_launch(words)
        load_run_config(options.config, options.set)
        if str(options.deepspeed_config).startswith("ds_configs/"):
            assert (ROOT / options.deepspeed_config).is_file(), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_minimind_lines_parse(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    for words in commands(page, "minimind"):
        assert words[1] in group.commands, words
        group.commands[words[1]].make_context(words[1], words[2:])  # raises for what it does not know


def test_the_readmes_have_commands_to_check() -> None:
    for page in READMES:
        assert len(commands(page, "deepspeed")) >= 5 and len(commands(page, "minimind")) >= 15


def test_every_command_of_minimind_is_named() -> None:
    group: Any = typer.main.get_command(app)
    for page in READMES:
        assert {words[1] for words in commands(page, "minimind")} == set(group.commands)


def test_both_readmes_have_the_same_commands_in_the_same_order() -> None:
    english, chinese = READMES
    assert shell_lines(english) == shell_lines(chinese)
    assert spans(english) == spans(chinese)


def test_both_readmes_have_the_same_shape_and_transcript() -> None:
    english, chinese = (page.read_text(encoding="utf-8") for page in READMES)
    for pattern in (r"^(#+) ", r"^(- )", r"^(\|)", r"\]\(([^)#]+)\)"):
        ours = [hit for hit in re.findall(pattern, english, re.MULTILINE) if "README" not in hit]
        theirs = [hit for hit in re.findall(pattern, chinese, re.MULTILINE) if "README" not in hit]
        assert sorted(ours) == sorted(theirs), pattern
    assert TRANSCRIPT.findall(english) == TRANSCRIPT.findall(chinese)
    assert len(TRANSCRIPT.findall(english)) == 1


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_exactly_the_shipped_configs_are_named(page: Path) -> None:
    assert set(re.findall(r"ds_configs/\w+\.json", prose(page))) == CONFIGS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    text = prose(page)
    anchors = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        assert not path or (page.parent / path).exists(), target
        assert path or anchor in anchors, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_named_as_proof_exists(page: Path) -> None:
    for file, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", prose(page)):
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), (file, name)


def test_the_pip_lines_are_the_makefiles() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    setup = makefile.split("\n$(STAMP):")[1].split("\n\n")[0]  # that rule's recipe
    recipe = [line.split("$(PIP) ")[1] for line in setup.splitlines() if line.startswith("\t$(PIP) ")]
    extras = re.findall(r"^EXTRAS \?= (.+)$", makefile, re.MULTILINE)[0]
    wanted = [f"pip install -c constraints.txt {line.replace('$(EXTRAS)', extras)}" for line in recipe]
    assert [line for line in shell_lines(READMES[0]) if line.startswith("pip ")] == wanted
    for line in shell_lines(READMES[0]):
        if line.startswith("make "):
            assert f"\n{line.split()[1]}:" in makefile, line


# docs/troubleshooting.md: each message must exist in the code


@cache
def code_strings() -> str:
    """Every string constant of the package, implicit concatenations joined, one a line."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "minimind").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def messages(section: str) -> list[str]:
    """First cells of the section's tables headed `message`."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    body = re.split(r"^## ", text, flags=re.MULTILINE)
    tables = [table for part in body if part.startswith(section) for table in part.split("\n\n")]
    rows = [table.splitlines()[2:] for table in tables if table.startswith("| message |")]
    return [row.split(" | ")[0].removeprefix("| ")[1:-1] for table in rows for row in table]


@pytest.mark.parametrize("section", ["Before the first step", "While it runs", "A model that does not load"])
def test_every_message_is_in_the_code(section: str) -> None:
    found = messages(section)
    assert len(found) >= 7
    for message in found:
        for fragment in filter(None, message.split("...")):
            assert fragment in code_strings(), message


def test_foreign_messages_are_in_the_launcher() -> None:
    spec = importlib.util.find_spec("deepspeed")
    assert spec is not None and spec.origin is not None
    runner = (Path(spec.origin).parent / "launcher" / "runner.py").read_text(encoding="utf-8")
    found = messages("Messages that are not ours")
    assert len(found) == 3
    for message in found:
        assert message in runner, message
