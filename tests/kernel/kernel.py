"""A real Jupyter kernel, driven over its sockets as a front end does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Ran:
    """What running one cell gave."""

    status: str = ""
    outputs: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """(message type, content), in order."""
    seconds: float = 0.0

    @property
    def value(self) -> str:
        """Plain text of the cell's value."""
        for kind, content in self.outputs:
            if kind == "execute_result":
                return str(content["data"]["text/plain"])
        return ""

    @property
    def error(self) -> str:
        """The traceback as it is shown, without colours."""
        import re

        for kind, content in self.outputs:
            if kind == "error":
                return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(content["traceback"]))
        return ""

    @property
    def stdout(self) -> str:
        return "".join(c["text"] for kind, c in self.outputs if kind == "stream")

    def data(self, kind: str) -> list[dict[str, Any]]:
        """Mime bundles of all outputs of one kind."""
        return [content["data"] for found, content in self.outputs if found == kind]


class Kernel:
    """Use as a context manager."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(folder / "k"))
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self._folder = folder
        self.client: BlockingKernelClient

    def __enter__(self) -> Kernel:
        self.manager.start_kernel(env=self._env, cwd=str(self._folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()

    def run(
        self,
        code: str,
        *,
        interrupt_when: Callable[[], bool] | None = None,
        during: Callable[[dict[str, Any]], None] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Ran:
        """Run one cell to its end.

        Parameters
        ----------
        interrupt_when
            Polled while the cell runs; interrupts the kernel once when it is true. ``seconds`` of
            the outcome then counts from the interrupt.
        during
            Gets every message of the kernel while the cell runs.
        """
        message = self.client.session.msg(
            "execute_request",
            {"code": code, "silent": False, "store_history": True, "allow_stdin": False},
            metadata=metadata,
        )
        self.client.shell_channel.send(message)
        sent = message["header"]["msg_id"]
        ran, begin, interrupted = Ran(), time.monotonic(), False
        deadline = begin + 60
        while time.monotonic() < deadline:
            if interrupt_when is not None and not interrupted and interrupt_when():
                self.manager.interrupt_kernel()
                interrupted, begin = True, time.monotonic()
            try:
                found = self.client.get_iopub_msg(timeout=0.02)
            except Exception as error:
                if type(error).__name__ == "Empty":
                    continue
                raise
            kind, content = found["msg_type"], found["content"]
            if during is not None:
                during(found)
            if found["parent_header"].get("msg_id") != sent:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                break
            if kind in (
                *("stream", "execute_result", "display_data", "update_display_data", "error"),
            ):
                ran.outputs.append((kind, content))
        else:
            raise TimeoutError(f"the cell did not end:\n{code}")
        ran.seconds = time.monotonic() - begin
        while True:
            reply = self.client.get_shell_msg(timeout=30)
            if reply["parent_header"].get("msg_id") == sent:
                ran.status = reply["content"]["status"]
                return ran
