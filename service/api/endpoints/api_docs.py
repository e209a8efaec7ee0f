"""GET /docs: this API's description for people: one page, made once, without scripts and without anything from other
servers."""

from __future__ import annotations

from html import escape
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.endpoints.openapi import describe
from service.config import ApiConfig

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "pre{overflow-x:auto;padding:.5rem;border:1px solid #8884}code b{color:#2a7de1}summary{cursor:pointer}"
)
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class ApiDocs:
    """Requires a key where /openapi.json does."""

    def __init__(self, config: ApiConfig) -> None:
        self._page = page(describe(config)).encode()

    async def get(self, http: Request) -> Response:
        return Response(self._page, headers=_HEADERS, media_type="text/html")


def page(description: dict[str, Any]) -> str:
    """The page for an OpenAPI description: each route, then each shape, to which the routes link."""
    info = description["info"]
    routes = [
        _route(path, method, operation)
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    ]
    shapes = [_shape(name, shape) for name, shape in sorted(description["components"]["schemas"].items())]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><h1>{title}</h1>'
        f'<p>{escape(info["description"])}</p><p>For programs: <a href="openapi.json">openapi.json</a></p>'
        f"<h2>Routes</h2>{''.join(routes)}<h2>Shapes</h2>{''.join(shapes)}</body></html>"
    )


def _route(path: str, method: str, operation: dict[str, Any]) -> str:
    shapes = sorted(_names(operation))
    links = ", ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in shapes)
    return f"<p><code><b>{method.upper()}</b> {escape(path)}</code> {escape(operation['summary'])} {links}</p>"


def _shape(name: str, shape: dict[str, Any]) -> str:
    text = orjson.dumps(shape, option=orjson.OPT_INDENT_2).decode()
    return f'<details id="{escape(name)}"><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>'


def _names(value: Any) -> set[str]:
    """The names of the shapes that are referred to."""
    if isinstance(value, dict):
        own = {value["$ref"].rpartition("/")[2]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(_names, value.values()))
    return set().union(*map(_names, value)) if isinstance(value, list) else set()
