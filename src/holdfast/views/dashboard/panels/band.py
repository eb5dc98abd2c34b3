"""Band: what to do now, in one line."""

from __future__ import annotations

import re
from typing import Final

from holdfast.record.views.headline import headline_of
from holdfast.views.dashboard.markup import Panel, text
from holdfast.views.dashboard.view import View

_COLORS: Final = {"failure": "red", "warning": "amber", "done": "blue"}


def panel(view: View) -> Panel:
    """The band; without a body if there is nothing to do."""
    if view.is_reading:
        return Panel()  # what is old is not what to do now
    found = headline_of(view.record, view.state, view.now)
    if found is None:
        return Panel()
    color = _COLORS[found.level]
    fill = "--amber-fill" if color == "amber" else f"--{color}"
    words = re.sub(r"`([^`]*)`", r"<code>\1</code>", text(found.words))
    return Panel(
        body=f'<div class="hf band" style="--c:var(--{color});--f:var({fill})">'
        f"<span>{found.icon}</span><p><strong>{text(found.title)}</strong> {words}</p>"
        f'<span class="more">{text(found.more)}</span></div>'
    )
