"""README.md, README.zh.md and docs/: every command parses, every file named exists, both languages say the same."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import re
import shlex
from argparse import Namespace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer

from minimind.cli import app
from minimind.config.run import load_run_config
from minimind.training.run.arguments import parse

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
COMPARISONS = [ROOT / "docs" / "comparison.md", ROOT / "docs" / "comparison.zh.md"]
AT_THE_ROOT = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
BESIDE_CODE = [ROOT / "ds_configs" / "README.md", ROOT / "tests" / "attacks" / "README.md"]
PAGES = [*READMES, *AT_THE_ROOT, *sorted((ROOT / "docs").glob("*.md"))]
TO_TYPE = [page for page in [*PAGES, *BESIDE_CODE] if page.name not in ("LOG.md", "CHANGELOG.md")]  # not: history
LONGEST = 200  # characters of a line of prose
CONFIGS = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ds_configs").glob("*.json")}
TRANSCRIPT = re.compile(r"<!-- transcript:begin -->\n(.*?)\n<!-- transcript:end -->", re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)((?:    .*\n)+)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def prose(page: Path) -> str:
    """A page without its transcript, which is a program's output."""
    return TRANSCRIPT.sub("", page.read_text(encoding="utf-8"))


def shell_lines(page: Path) -> list[str]:
    """The lines of the page's `sh` blocks, comments and line continuations taken out."""
    blocks = [body for language, body in FENCE.findall(prose(page)) if language == "sh"]
    return code_lines(blocks)


def code_lines(blocks: list[str]) -> list[str]:
    """Without comments, line continuations joined."""
    lines = [re.sub(r"(^|\s+)#.*", "", line) for body in blocks for line in body.replace("\\\n", " ").splitlines()]
    return [line.strip() for line in lines if line.strip()]


def spans(page: Path) -> list[str]:
    """Inline code, in order."""
    return SPAN.findall(FENCE.sub("", prose(page)))


def written(page: Path) -> list[list[str]]:
    """Every line of code of the page as words: `sh` blocks, indented blocks, spans."""
    indented = code_lines(INDENTED.findall(FENCE.sub("", prose(page))))
    found = []
    for line in [*shell_lines(page), *indented, *spans(page)]:
        with contextlib.suppress(ValueError):  # a span that is no command: an apostrophe, half a quotation
            found.append(shlex.split(line))
    return found


def commands(page: Path, name: str) -> list[list[str]]:
    """Every command of the page that starts with ``name`` and has arguments, as words; variables may stand before it,
    and a container's command begins at the last ``name``."""
    found = []
    for words in written(page):
        at = len(words) - 1 - words[::-1].index(name) if name in words else 0
        if words[:2] == ["docker", "run"] or all(re.match(r"\$$|[A-Z_]+=", word) for word in words[:at]):
            found.append(words[at:])
    return [words for words in found if words[0] == name and len(words) > 1]


def launched(page: Path) -> list[list[str]]:
    """The lines that start a script, as ``deepspeed`` lines: ``minimind launch`` takes these words and --restarts."""
    ours = [words[2:] for words in commands(page, "minimind") if words[1] == "launch" and words[-1].strip(".")]
    ours = [words for words in ours if any(word.endswith(".py") for word in words)]
    ours = [words[2:] if words[0] == "--restarts" else words for words in ours]
    theirs = [words for words in commands(page, "deepspeed") if words[-1].strip(".")]  # "..." ends what stands for more
    return [*theirs, *(["deepspeed", *words] for words in ours)]


def parsed_launch(words: list[str]) -> Namespace:
    """The script's options as its own parser reads them, behind the launcher's."""
    from deepspeed.launcher.runner import parse_args

    launcher = parse_args(words[1:])
    script = Path(launcher.user_script)
    assert (ROOT / script).is_file() and script.parent == Path("launch"), words
    return parse_script(script, launcher.user_args)


def parse_script(script: Path, words: list[str]) -> Namespace:
    """The options of a launch script; SystemExit for what it does not know."""
    if script.stem == "lr_sweep":
        from minimind.training.sweep import options as lr_options

        return lr_options.parse(words)
    kind: Any = script.stem
    return parse(kind, words)


@pytest.mark.slow  # the launcher's parser comes with the whole of deepspeed
@pytest.mark.parametrize("page", TO_TYPE, ids=lambda page: page.name)
def test_launch_lines_parse(page: Path) -> None:
    for words in launched(page):
        options = parsed_launch(words)
        if options.config is None or (ROOT / options.config).is_file():  # else one that a reader writes
            load_run_config(options.config, options.set)
        if str(options.deepspeed_config).startswith("ds_configs/"):
            assert (ROOT / options.deepspeed_config).is_file(), words


@pytest.mark.parametrize("page", TO_TYPE, ids=lambda page: page.name)
def test_minimind_lines_parse(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    own = {name for option in group.params for name in option.opts}
    for words in commands(page, "minimind"):
        if words[1] in own:
            continue
        assert words[1] in group.commands, words
        if words[2:]:  # else its name alone, in prose
            group.commands[words[1]].make_context(words[1], words[2:])  # raises for what it does not know


def shared_by(folder: Path) -> list[str]:
    """Modules that other scripts of the folder import."""
    return [path.read_text(encoding="utf-8") for path in folder.glob("*.py") if "__main__" not in path.read_text()]


@pytest.mark.parametrize("page", TO_TYPE, ids=lambda page: page.name)
def test_what_a_line_starts_or_names_is_there(page: Path) -> None:
    """Other starters' lines, benchmarks and tools with their options, make's targets, configs."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in written(page):
        scripts = [at for at, word in enumerate(words) if re.fullmatch(r"(launch|benchmarks|tools)/\w+\.py", word)]
        for at in scripts:
            folder, options = (ROOT / words[at]).parent, list(takewhile(lambda word: word != ";", words[at + 1 :]))
            options = [word for word in options if word != "..."]
            assert (ROOT / words[at]).is_file(), words
            if folder.name == "launch":
                parse_script(Path(words[at]), options)
            else:  # an option is the script's own or of the module that all of the folder share
                sources = [(ROOT / words[at]).read_text(encoding="utf-8"), *shared_by(folder)]
                names = [word for word in options if word.startswith("--")]
                assert [name for name in names if not any(f'"{name}"' in text for text in sources)] == [], words
        if words[0] == "make" and len(words) == 2 and re.fullmatch(r"[a-z-]+", words[1]):
            assert f"\n{words[1]}:" in makefile, words
    for name in re.findall(r"(?<![\w/.-])(?:ds_configs|configs)/[a-z][\w-]+\.(?:json|yaml)", prose(page)):
        assert (ROOT / name).is_file(), name


def test_the_readmes_have_commands_to_check() -> None:
    for page in READMES:
        assert len(launched(page)) >= 5 and len(commands(page, "minimind")) >= 15


def test_every_command_of_minimind_is_named() -> None:
    group: Any = typer.main.get_command(app)
    for page in READMES:
        assert {words[1] for words in commands(page, "minimind")} == set(group.commands)


@pytest.mark.parametrize("pages", [READMES, COMPARISONS], ids=["README", "comparison"])
def test_both_languages_have_the_same_commands_in_the_same_order(pages: list[Path]) -> None:
    english, chinese = pages
    assert shell_lines(english) == shell_lines(chinese)
    assert spans(english) == spans(chinese)


@pytest.mark.parametrize("pages", [READMES, COMPARISONS], ids=["README", "comparison"])
def test_both_languages_have_the_same_shape(pages: list[Path]) -> None:
    english, chinese = (page.read_text(encoding="utf-8") for page in pages)
    for pattern in (r"^(#+) ", r"^(- )", r"^(\|)", r"\]\(([^)#]+)\)"):
        ours, theirs = (
            [hit.replace(".zh.md", ".md") for hit in re.findall(pattern, text, re.MULTILINE)]
            for text in (english, chinese)
        )
        assert sorted(ours) == sorted(theirs), pattern


def test_both_readmes_show_a_dozen_lines_of_the_transcript() -> None:
    """The transcript itself, of a real run, is in docs/demo.md."""
    (whole,) = TRANSCRIPT.findall((ROOT / "docs" / "demo.md").read_text(encoding="utf-8"))
    (english,), (chinese,) = (TRANSCRIPT.findall(page.read_text(encoding="utf-8")) for page in READMES)
    assert english == chinese and len(english.splitlines()) <= 14
    rest = iter(whole.splitlines())
    assert [line for line in english.splitlines() if line != "..." and line not in rest] == []  # and in that order


@pytest.mark.parametrize("readme", READMES, ids=lambda page: page.name)
def test_every_page_is_named(readme: Path) -> None:
    """In the reader's language where there is one; the trials' page is a part of docs/LOG.md."""
    text = readme.read_text(encoding="utf-8")
    own = [page for page in PAGES if page not in READMES and page.suffixes == [".md"] and "trials" not in page.stem]
    names = [page.relative_to(ROOT).as_posix() for page in own]
    assert [n for n in names if f"]({n})" not in text and f"]({n.replace('.md', '.zh.md')})" not in text] == []


def test_what_is_pinned_twice_is_pinned_to_one_version() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    (hook,) = re.findall(r"ruff-pre-commit\n    rev: v(\S+)", hooks)
    assert f"\nruff=={hook}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_of_prose_is_endless(page: Path) -> None:
    lines = FENCE.sub("", prose(page)).splitlines()
    assert [line for line in lines if len(line) > LONGEST and not line.startswith(("|", "    "))] == []


@pytest.mark.parametrize("page", COMPARISONS, ids=lambda page: page.name)
def test_every_line_of_the_comparison_has_its_proof(page: Path) -> None:
    rows = re.findall(r"^\| .*\|$", page.read_text(encoding="utf-8"), re.MULTILINE)[1:]
    assert len(rows) >= 16
    assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py::\w+`", row)] == []


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_exactly_the_shipped_configs_are_named(page: Path) -> None:
    assert set(re.findall(r"ds_configs/\w+\.json", prose(page))) == CONFIGS


def anchors(page: Path) -> set[str]:
    """Those of the page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *BESIDE_CODE], ids=lambda page: f"{page.parent.name}-{page.name}")
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", prose(page))):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        assert (page.parent / path).exists(), target
        assert not anchor or anchor in anchors(page.parent / path if path else page), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_named_as_proof_exists(page: Path) -> None:
    for file, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", prose(page)):
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), (file, name)


def test_the_pip_lines_are_the_makefiles() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (setup,) = re.findall(r"^\$\(STAMP\): .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    recipe = [line.split("$(PIP) ")[1] for line in setup.splitlines() if line.startswith("\t$(PIP) ")]
    recipe = [line.removeprefix("$(TORCH_FLAGS) ") for line in recipe]
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
