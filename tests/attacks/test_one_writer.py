"""No module writes, deletes or moves a file in another way than through minimind/base/files.py: by the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import minimind

ROOT = Path(minimind.__file__).parent
HELPER = "base/files.py"

# Calls by name that write, delete or move, whatever they are called on.
ALWAYS = {
    "write_text",
    "write_bytes",
    "unlink",
    "rmdir",
    "rmtree",
    "rename",
    "renames",
    "remove_tree",
    "removedirs",
    "copyfile",
    "copy2",
    "copytree",
    "touch",
    "symlink_to",
    "hardlink_to",
    "symlink",
    "link",
    "mknod",
    "mkfifo",
    "tofile",
    "savetxt",
    "savez",
    "save_file",
    "savefig",
    "mkstemp",
    "mkdtemp",
    "NamedTemporaryFile",
    "TemporaryFile",
    "TemporaryDirectory",
    "SpooledTemporaryFile",
    "truncate",
    "FileHandler",
    "GGUFWriter",
    "open_memmap",
    "makedirs",
    "mkdir",
    "chmod",
    "utime",
}
# Calls of a module's functions, which would be too common as names alone.
QUALIFIED = {
    "os.open",
    "os.replace",
    "os.remove",
    "os.link",
    "torch.save",
    "np.save",
    "shutil.copy",
    "shutil.move",
    "json.dump",
}

# What else there is, by file, and why it is no harm.
ALLOWED = {
    "data/fetch.py": {
        "mkdir",  # the directory that a person named
        "unlink",  # the download itself, which is damaged, and beginnings of other versions, by their names
        "os.rename",  # the verified download, and another file out of its way
        "truncate",  # of the open file
    },
    "data/http.py": {"open"},  # an address
    "data/records/rejects.py": {"unlink", "mkdir"},  # what _require_rejects has looked at
    "corpus/corpus.py": {"unlink", "mkdir"},  # the stamp in the cache
    "data/store/cache.py": {"truncate"},  # of the open lock
    "data/store/prepare.py": {"mkdir"},
    "data/store/rooms.py": {"mkdir", "chmod"},  # the cache's
    "data/read/sources.py": {"mkdir", "NamedTemporaryFile"},  # the spool, in a private directory of a new name
    "data/store/store.py": {"mkdir", "rename"},  # a new directory, and it to its place: a link there makes that fail
    "data/store/files.py": {"rmdir"},
    "data/check/check.py": {"TemporaryDirectory"},
    "data/records/texts.py": {"TemporaryDirectory"},
    "data/read/tables.py": {"TemporaryFile"},
    "text/tokenizer.py": {"mkdir"},
    "commands/choices.py": {"TemporaryDirectory"},
    "commands/models.py": {"mkdir"},
    # an export's config.json; into `replacing`'s file, and that one's header
    "interop/huggingface.py": {"mkdir", "unlink", "save_file", "open"},
    "interop/bombs.py": {"open"},  # an archive's member, read
    "interop/gguf.py": {"GGUFWriter"},  # into `replacing`'s file
    "interop/upstream.py": {"torch.save"},  # the same
    "training/sweep/report.py": {"savefig"},  # the same
    "training/checkpoint/snapshot.py": {"torch.save"},  # into `create`'s file
    "training/checkpoint/transfer.py": {"chmod"},  # of the file that was just made
    "training/process/disks.py": {"mkdir", "rmdir"},  # the run directory, while it is looked for
    "training/checkpoint/directory.py": {"os.rename", "unlink", "mkdir"},  # names in checkpoints/, and the pointers
    "training/run/directory.py": {"mkdir"},
    "training/record/file.py": {"mkdir", "os.rename"},
    "api.py": {"TemporaryDirectory"},  # for a pipe's bytes
    # torch's build directory, its dead lock, and the open lock of ours
    "training/engine/builds.py": {"mkdir", "unlink", "truncate", "TemporaryFile"},
    "training/engine/build_lock.py": {"os.open"},  # for reading, to ask the kernel who else has it open
    "training/process/run_lock.py": {"os.open", "mkdir", "unlink", "rmdir"},  # O_NOFOLLOW; what it made itself
}


def called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        owner = f"{function.value.id}." if isinstance(function.value, ast.Name) else ""
        qualified = f"{owner}{function.attr}"
        if qualified in QUALIFIED or (owner in ("os.", "shutil.") and function.attr in ALWAYS | {"rename"}):
            return qualified
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def opens_for_writing(node: ast.Call) -> bool:
    """``open(path, "w")``, ``path.open("ab")``, or with a mode that is not written out."""
    if called(node) not in ("open", "fdopen"):
        return False
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(owner, ast.Name) and owner.id[:1].isupper():  # TokenStore.open
        return False
    place = 0 if isinstance(node.func, ast.Attribute) and node.func.attr == "open" else 1
    modes = [*node.args[place : place + 1], *(k.value for k in node.keywords if k.arg == "mode")]
    return any(not isinstance(m, ast.Constant) or set(str(m.value)) & set("wax+") for m in modes)


def is_path_replace(node: ast.Call) -> bool:
    """``path.replace(target)``; a string's has two arguments, a dataclass's only named ones."""
    return (
        isinstance(node.func, ast.Attribute)
        and node.func.attr == "replace"
        and len(node.args) == 1
        and not node.keywords
    )


def writes(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = called(node)
        if name in ALWAYS or name in QUALIFIED or name.partition(".")[2] in ALWAYS:
            yield name, node.lineno
        elif opens_for_writing(node):
            yield "open", node.lineno
        elif is_path_replace(node):
            yield "replace", node.lineno


MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@pytest.mark.parametrize("module", [name for name in MODULES if name != HELPER])
def test_a_module_writes_through_the_helper(module: str) -> None:
    allowed = ALLOWED.get(module, set())
    found = [(name, line) for name, line in writes(ROOT / module) if name not in allowed]
    assert not found, f"{module}: {found}: take write_durably, replacing, create, remove_files ... of {HELPER}"


def test_the_list_holds_nothing_that_is_gone() -> None:
    for module, allowed in ALLOWED.items():
        assert {name for name, _ in writes(ROOT / module)} == allowed, module


SEEN = [
    "p.write_text('')",
    "p.open('w')",
    "open(p, 'ab')",
    "p.open(mode)",
    "open(p, mode='x')",
    "p.rename(q)",
    "p.replace(q)",
    "shutil.rmtree(p)",
    "os.open(p, 1)",
    "os.replace(a, b)",
    "json.dump(a, b)",
    "np.save(p, a)",
    "os.fdopen(d, 'r+b')",
    "shutil.move(a, b)",
]


@pytest.mark.parametrize("line", SEEN)
def test_the_search_sees(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(line)
    assert list(writes(tmp_path / "a.py"))


@pytest.mark.parametrize("line", ["p.open()", "p.open('rb')", "TokenStore.open(p)", "a.replace('b', 'c')", "open(p)"])
def test_the_search_does_not_mind(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(line)
    assert not list(writes(tmp_path / "a.py"))
