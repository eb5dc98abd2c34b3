"""Login: the pages of who is not let in yet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final
from urllib.parse import urlencode

from holdfast.views.dashboard.theme import DARK, LIGHT

PATH: Final = "/login"
TOKEN: Final = "token"  # noqa: S105  # the name of a field

_STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{margin:0;min-height:100vh;display:grid;place-items:center;"
    f"background:light-dark({LIGHT.bg},{DARK.bg});color:light-dark({LIGHT.ink},{DARK.ink});"
    "font:14px/20px 'Source Sans 3','Source Sans',system-ui,sans-serif}"
    "form{display:grid;gap:12px;width:min(360px,calc(100vw - 48px));padding:20px 24px 24px;"
    f"background:light-dark({LIGHT.panel},{DARK.panel});"
    f"border:1px solid light-dark({LIGHT.line},{DARK.line});border-radius:8px}}"
    "h1{font-size:16px;margin:0}p{margin:0}code{font-size:.92em}"
    "input,button{font:inherit;color:inherit;height:40px;box-sizing:border-box;padding:0 12px;"
    f"border:1px solid light-dark({LIGHT.line},{DARK.line});border-radius:6px;"
    f"background:light-dark({LIGHT.inset},{DARK.inset})}}"
    f"button{{font-weight:600;cursor:pointer}}.no{{color:light-dark({LIGHT.red},{DARK.red})}}"
)

Query = Sequence[tuple[str, str]]
"""What the address of the page says of the run, without the token."""


def form(query: Query, error: str = "") -> str:
    """The page that asks for the token.

    Args:
        query: What the page is to show afterwards.
        error: Why the last token was refused.
    """
    refused = f'<p class="no" role="alert">{escape(error)}</p>' if error else ""
    return _page(
        f'<form method="post" action="{escape(with_query(PATH, query))}"><h1>holdfast</h1>'
        "<p>The token is in the file that <code>holdfast dashboard</code> named when it "
        f'started.</p>{refused}<input type="password" name="{TOKEN}" aria-label="Token" '
        'placeholder="Token" autocomplete="off" required autofocus><button>Open</button></form>'
    )


def forward(query: Query) -> str:
    """A page that leads to the dashboard.

    A redirect would not do: after a link on a page of another site, the browser would follow it
    without the new cookie, which is for requests of this site only.
    """
    target = escape(with_query("/", query))
    return _page(f'<p><a href="{target}">holdfast</a></p>', f"0;url={target}")


def with_query(path: str, query: Query) -> str:
    """An address on this server."""
    return f"{path}?{urlencode(query)}" if query else path


def _page(body: str, refresh: str = "") -> str:
    meta = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>holdfast</title>'
        f'<meta name="viewport" content="width=device-width">{meta}<style>{_STYLE}</style>{body}'
    )
