"""The process that serves the page: Streamlit, bound to this machine.

python -m holdfast.dashboard.process PORT PARENT PATH
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from streamlit import net_util
from streamlit.web import bootstrap

import holdfast.dashboard.page  # noqa: F401 - the first visit would wait for the import
from holdfast.dashboard import theme
from holdfast.linux.lifeline import die_with_parent

ADDRESS: Final = "127.0.0.1"
_OPTIONS: Final[dict[str, object]] = {
    "server.address": ADDRESS,
    "browser.serverAddress": ADDRESS,
    "server.headless": True,
    "server.fileWatcherType": "none",
    "server.enableXsrfProtection": True,
    "server.enableCORS": True,
    "browser.gatherUsageStats": False,
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    "global.developmentMode": False,
    "runner.magicEnabled": False,
    "runner.postScriptGC": False,  # a collection after each panel takes as long as the panels
    "logger.level": "warning",
    "logger.hideWelcomeMessage": True,
}


def main(port: int, parent: int, path: str) -> None:
    """Serve the page until a signal comes, or the parent dies."""
    die_with_parent(parent)
    net_util.get_external_ip = _no_address  # it would ask a server on the internet
    options = {**_OPTIONS, **theme.options(), "server.port": port}
    flags = {name.replace(".", "_"): value for name, value in options.items()}
    bootstrap.load_config_options(flag_options=flags)
    bootstrap.run(str(Path(__file__).with_name("app.py")), False, [path], flags)


def _no_address() -> str | None:
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
