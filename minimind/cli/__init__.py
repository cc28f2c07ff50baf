"""The `minimind` command: one function a command, which imports what it needs and calls it.

Contract. Exit code 0: done. 1: done, and what was found is bad. 2: used wrongly; one line on stderr says what to do
(`--debug`, anywhere on the line, shows the traceback instead). Nothing heavy is imported before a command runs, so
that `minimind --help` answers at once. A command is one function in the module of its subject, decorated with
``@app.command()``.
"""

from minimind.cli.entry import main, run
from minimind.cli.root import app

__all__ = ["app", "main", "run"]
