"""The chat page: a few files that load nothing from elsewhere; a browser enforces that by their policy.

Contract. The page talks to this server only. What the model says reaches it as text, never as HTML (markdown.js).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FILES = Path(__file__).with_name("page_files")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_paths() -> list[str]:
    """Where the page's files are served: ``/`` and ``/page/NAME``."""
    return ["/", *(f"/page/{file.name}" for file in sorted(FILES.iterdir()) if file.name != "index.html")]


def page_routes() -> list[Route]:
    """A route for each file."""
    return [Route(path, _sender(FILES / (path.rpartition("/")[2] or "index.html"))) for path in page_paths()]


def _sender(file: Path) -> Callable[[Request], Awaitable[Response]]:
    content, kind = file.read_bytes(), TYPES[file.suffix]

    async def send(request: Request) -> Response:
        return Response(content, headers=HEADERS, media_type=kind)

    return send
