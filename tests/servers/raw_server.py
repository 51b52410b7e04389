"""A server that breaks off where an HTTP library would not: resets, trickles, bare TLS.

It runs in a thread of its own. What it does is said by the last word of the prompt.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections import Counter
from types import TracebackType

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class RawServer:
    """Use it as a context manager. ``asked`` counts the requests of each prompt."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.asked: Counter[str] = Counter()
        self._tls = tls
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()])
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=self._tls)
        port = server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}/v1"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for writer in self._open:
            writer.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(tasks or [asyncio.create_task(asyncio.sleep(0))])

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                prompt = json.loads(await reader.readexactly(size))["messages"][-1]["content"]
                self.asked[prompt] += 1
                if not await self._answer(writer, prompt):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, prompt: str) -> bool:
        """Answer; False ends the connection."""
        message = {"content": f"answer to: {prompt}"}
        body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        whole = HEAD % len(body) + body
        fault = prompt.split()[-1]
        if fault == "before":
            return _reset(writer)
        if fault in ("during", "after"):
            writer.write(whole[: 40 if fault == "during" else len(HEAD) + 10])
            await writer.drain()
            await asyncio.sleep(0.05)
            return _reset(writer)
        if fault == "trickle":
            for byte in whole:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(1)
        writer.write(whole)
        await writer.drain()
        return True

    def __enter__(self) -> RawServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Close with a reset in place of a normal end."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
