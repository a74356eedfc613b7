"""Graphs to inspect, save and run: `torch.remote.trace`, `torch.remote.from_text`."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from torch_remote import _C
from torch_remote.device._device import _index

_VALUES = "// parameters:"


class Graph:
    """A recorded computation, as docs/ir.md describes it: buffers, views of them, and ops in program order.

    A recorded graph knows the parameters (sizes, strides, offsets, numbers) of the run that it was recorded from. It
    holds no tensor contents.
    """

    def __init__(self, native: _C.Graph) -> None:
        self._native = native

    def __len__(self) -> int:
        """Returns the number of ops."""
        return self._native.nodes

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<torch.remote.Graph of {len(self)} ops>"

    @property
    def ops(self) -> dict[str, int]:
        """Returns the number of uses of each op, by name."""
        return dict(self._native.ops())

    @property
    def params(self) -> list[int]:
        """The parameters of the run that it was recorded from; a float is given as the bits of a double."""
        return self._native.params

    def to_text(self) -> str:
        """Returns the text form, with the user's source lines; `from_text` reads it."""
        values = f"{_VALUES} {' '.join(map(str, self.params))}\n" if self.params else ""
        return values + self._native.to_text()

    def optimized(self) -> Graph:
        """Returns the graph after the passes, with the groups that kernels execute."""
        return Graph(self._native.optimized())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the graph for the tools (remote-opt, remote-dump, remote-viz): as a flatbuffer if the name ends in
        .program, otherwise as text."""
        path = Path(path)
        if path.suffix == ".program":
            path.write_bytes(self._native.to_program())
        else:
            path.write_text(self.to_text())

    def run(
        self, *inputs: torch.Tensor, params: Mapping[int, int | float] | Iterable[int] | None = None
    ) -> list[torch.Tensor]:
        """Runs the graph.

        Args:
            inputs: one tensor on the device per input buffer, in order. Those that the graph writes are modified.
            params: values by number, or all of them. Missing ones are taken from the inputs' sizes, strides and
                offsets, or else from the recorded run.

        Returns:
            A tensor for each surviving fresh buffer, in order.

        Raises:
            ValueError: inputs or parameters do not fit the graph, or are missing.
            RuntimeError: the inputs are on several devices.
        """
        if params is None:
            params = {}
        elif not isinstance(params, Mapping):
            params = dict(enumerate(params))
        bits = {
            int(i): struct.unpack("<q", struct.pack("<d", value))[0] if isinstance(value, float) else int(value)
            for i, value in params.items()
        }
        return self._native.run(list(inputs), bits)


def from_text(text: str) -> Graph:
    """Returns the graph of a text form (docs/ir.md).

    Raises:
        ValueError: the text is invalid; the message is "line:column: what is wrong".
    """
    native = _C.Graph.from_text(text)
    values = re.search(rf"^{_VALUES}(.*)$", text, re.MULTILINE)
    if values is not None:
        native.params = [int(value) for value in values[1].split()]
    return Graph(native)


class trace:  # noqa: N801 (called like a function)
    """Context manager that records the block as graphs.

    >>> with torch.remote.trace() as trace:
    ...     y = torch.relu(x @ w)
    >>> print(trace.graph)

    The ops run as usual. They form one graph, unless the block waits for results in between or calls compiled
    functions.
    """

    def __init__(self, device: torch.device | str | int | None = None) -> None:
        self._device = _index(device)
        self._graphs: list[Graph] | None = None

    def __enter__(self) -> trace:
        _C.start_tracing(self._device)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._graphs = [Graph(native) for native in _C.take_traced(self._device)]

    @property
    def graphs(self) -> list[Graph]:
        """All graphs, in order."""
        if self._graphs is None:
            raise RuntimeError("torch.remote.trace: the graphs are available after the block")
        return self._graphs

    @property
    def graph(self) -> Graph:
        """The graph. Raises ValueError if there is not exactly one."""
        if len(self.graphs) != 1:
            raise ValueError(f"torch.remote.trace: the block recorded {len(self.graphs)} graphs; see .graphs")
        return self.graphs[0]

    def __str__(self) -> str:
        if self._graphs is None:
            return "torch.remote.trace: the graphs are available after the block"
        return "\n".join(graph.to_text() for graph in self._graphs)

    def to_text(self) -> str:
        """Returns the graph's text."""
        return self.graph.to_text()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the graph; see Graph.save."""
        self.graph.save(path)
