"""A port of this machine that forwards to a port that is reached over something else: an API's websocket, a TLS tunnel.

Each connection to the port becomes a connection to the far end, with a thread that copies bytes both ways. It buffers
little: if one side does not read, the other side cannot write. Only clients that know the worker's token get past its
handshake.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable

_PIECE = 256 << 10
_TO_END = 5.0  # seconds that `close` waits for threads
_BEFORE_RETRY = 0.1  # seconds after a connection that could not be accepted


class RemoteSocket:
    """A connected stream socket, with or without TLS."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        self._socket = connection
        self._out = memoryview(b"")

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def sending(self) -> bool:
        """Whether bytes given to `send` have not been sent yet."""
        return bool(self._out)

    def has_more(self) -> bool:
        """Whether there are buffered bytes that poll() does not report."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def send(self, piece: bytes) -> None:
        """Accepts a piece, which `flush` sends."""
        assert not self._out
        self._out = memoryview(piece)

    def flush(self) -> None:
        """Sends what can be sent without blocking."""
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while self._out:
                self._out = self._out[self._socket.send(self._out) :]

    def receive(self) -> bytes | None:
        """Returns available bytes; empty if there are none yet, None at the end of the stream."""
        try:
            return self._socket.recv(_PIECE) or None
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class PodPort(RemoteSocket):
    """A websocket of Kubernetes' pods/portforward, protocol v4.channel.k8s.io, with one port, after its handshake.

    A message begins with a channel: 0 has the port's bytes, 1 has errors. Each channel's first message is the port's
    number. Frames follow RFC 6455.
    """

    _CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
    _MOST_FRAME = 64 << 20

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.error = ""
        self._in = bytearray()
        self._message = bytearray()  # payload of frames that are continued
        self._got_port = [False, False]  # for each channel: whether its first message arrived
        self._pongs = bytearray()

    @property
    def sending(self) -> bool:
        return bool(self._out) or bool(self._pongs)

    def send(self, piece: bytes) -> None:
        super().send(self._frame(self._BINARY, b"\0" + piece))

    def flush(self) -> None:
        super().flush()
        if not self._out and self._pongs:
            self._out, self._pongs = memoryview(bytes(self._pongs)), bytearray()
            super().flush()

    @staticmethod
    def _frame(kind: int, payload: bytes) -> bytes:
        size, mask = len(payload), os.urandom(4)
        if size < 126:
            head = struct.pack(">BB", 0x80 | kind, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, size)
        key = (mask * (size // 4 + 1))[:size]
        masked = int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")
        return head + mask + masked.to_bytes(size, "big")

    def receive(self) -> bytes | None:
        more = super().receive()
        if more is None:
            return None
        self._in += more
        found = bytearray()
        while True:
            frame = self._take_frame()
            if frame is None:
                return bytes(found)
            final, kind, payload = frame
            if kind == self._CLOSE:
                return bytes(found) or None  # the end of the stream follows
            if kind == self._PING:
                self._pongs += self._frame(self._PONG, payload)
            elif kind in (self._CONTINUED, self._TEXT, self._BINARY):
                self._message += payload
                if final:
                    message, self._message = bytes(self._message), bytearray()
                    found += self._of_port(message)

    def _take_frame(self) -> tuple[bool, int, bytes] | None:
        """Removes a complete frame from the buffer; returns None if there is none."""
        data = self._in
        if len(data) < 2:
            return None
        size, begin = data[1] & 127, 2
        if size >= 126:
            begin += 2 if size == 126 else 8
            if len(data) < begin:
                return None
            size = int.from_bytes(data[2:begin], "big")
        if data[1] & 128 or size > self._MOST_FRAME:
            raise OSError("the API server sent an invalid frame")
        if len(data) < begin + size:
            return None
        payload = bytes(data[begin : begin + size])
        first = data[0]
        del data[: begin + size]
        return bool(first & 128), first & 15, payload

    def _of_port(self, message: bytes) -> bytes:
        if not message or message[0] > 1:
            raise OSError("the API server sent data on a channel that was not requested")
        channel = message[0]
        if not self._got_port[channel]:
            self._got_port[channel] = True
            return b""
        if channel == 1:
            self.error += message[1:].decode(errors="replace")
            raise OSError(self.error.strip())
        return message[1:]


class Forwarder:
    """Listens on a free port of 127.0.0.1. Thread safe."""

    def __init__(self, dial: Callable[[], RemoteSocket], name: str) -> None:
        """`dial` connects to the far end; it raises OSError if it cannot."""
        self._dial, self._name = dial, name
        self._lock = threading.Lock()
        self._locals: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self.error = ""  # of the last connection that failed
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def _start(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, name=f"torch-remote to {self._name}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _accept(self) -> None:
        try:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError as error:
                    if self._closed:
                        return
                    self.error = str(error)  # such as too many open files
                    time.sleep(_BEFORE_RETRY)
                    continue
                with self._lock:
                    if self._closed:
                        connection.close()
                        return
                    self._locals.add(connection)
                    self._start(self._serve, connection)
        finally:
            self._listener.close()
            self._ended()

    def _ended(self) -> None:
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _serve(self, near: socket.socket) -> None:
        far = None
        try:
            far = self._dial()
            near.settimeout(0)
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _carry(near, far)
        except Exception as error:  # an SDK may raise anything: the connection ends, and the client reports that
            if not self._closed:
                self.error = str(error) or type(error).__name__
        finally:
            if far is not None:
                far.close()
            with self._lock:
                self._locals.discard(near)
                near.close()
            self._ended()

    def close(self) -> None:
        """Ends all connections."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            for near in self._locals:
                with contextlib.suppress(OSError):
                    near.shutdown(socket.SHUT_RDWR)
            threads = list(self._threads)
        for thread in threads:
            thread.join(_TO_END)


def _carry(near: socket.socket, far: RemoteSocket) -> None:
    """Copies bytes until one side ends. Reads from neither side what the other one does not accept."""
    to_near = memoryview(b"")
    while True:
        poll = select.poll()
        # A side without wanted events is not registered: after its end it would wake poll() again and again.
        if wants := (0 if far.sending else select.POLLIN) | (select.POLLOUT if to_near else 0):
            poll.register(near, wants)
        if wants := (0 if to_near else select.POLLIN) | (select.POLLOUT if far.sending else 0):
            poll.register(far, wants)
        poll.poll(0 if not to_near and far.has_more() else None)
        if not far.sending:
            with contextlib.suppress(BlockingIOError):
                piece = near.recv(_PIECE)
                if not piece:
                    return
                far.send(piece)
        if not to_near:
            received = far.receive()
            if received is None:
                return
            to_near = memoryview(received)
        far.flush()
        with contextlib.suppress(BlockingIOError):
            while to_near:
                to_near = to_near[near.send(to_near) :]
