"""The process that serves the page, with Streamlit.

python -m holdfast.views.dashboard.server_process LISTENER PARENT PATH
"""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path
from typing import Final

import uvicorn
from streamlit.starlette import App
from streamlit.web import bootstrap

import holdfast.views.dashboard.page  # noqa: F401 - the first visit would wait for the import
from holdfast.linux.lifeline import die_with_parent
from holdfast.views.dashboard import theme
from holdfast.views.dashboard.loopback_only import own_page_only

MAX_CONNECTIONS: Final = 500
"""More requests at a time are refused."""
END_TIMEOUT_S: Final = 1
"""Most time that open connections may delay the end."""
_OPTIONS: Final[dict[str, object]] = {
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
}


def main(listener: socket.socket, parent: int, path: str) -> None:
    """Serve the page until a signal comes, or the parent dies.

    Args:
        listener: Socket for requests.
        parent: The process that this one ends with.
        path: A run, or a directory with runs in it.
    """
    die_with_parent(parent)
    flags = {name.replace(".", "_"): value for name, value in (_OPTIONS | theme.options()).items()}
    bootstrap.load_config_options(flag_options=flags)
    script = Path(__file__).with_name("app.py")
    sys.argv = [str(script), path]
    config = uvicorn.Config(
        own_page_only(App(script)),
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=END_TIMEOUT_S,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    uvicorn.Server(config).run(sockets=[listener])


def _is_news(record: logging.LogRecord) -> bool:
    """True if a line is one; uvicorn takes a websocket that is refused for a mistake."""
    return "without completing handshake" not in record.getMessage()


if __name__ == "__main__":
    descriptor, parent_pid, directory = sys.argv[1:]
    main(socket.socket(fileno=int(descriptor)), int(parent_pid), directory)
