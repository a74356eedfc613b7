"""The collective ops in programs, for the worker's runner (worker/collectives/collective_runner.h).

They are registered with torch and recorded like any op that the op table lacks: by schema and arguments, in order with
all other ops. They are never removed, because their side effects are unknown.
"""

from __future__ import annotations

import torch

_SCHEMAS = (
    "listen(Tensor(a!) port, Tensor(b!) host, int group) -> ()",
    "join(Tensor plan, int group, int rank, int size, int timeout) -> ()",
    "leave(Tensor unused, int group) -> ()",
    "all_reduce_(Tensor(a!) tensor, int group, int sequence, str reduction) -> ()",
    "reduce_(Tensor(a!) tensor, int group, int sequence, str reduction, int root) -> ()",
    "broadcast_(Tensor(a!) tensor, int group, int sequence, int root) -> ()",
    "all_gather(Tensor(a!) output, Tensor input, int group, int sequence) -> ()",
    "reduce_scatter(Tensor(a!) output, Tensor input, int group, int sequence, str reduction) -> ()",
    "all_to_all(Tensor(a!) output, Tensor input, int group, int sequence, int[] output_counts, int[] input_counts)"
    " -> ()",
    "gather(Tensor(a!) output, Tensor input, int group, int sequence, int root) -> ()",
    "scatter(Tensor(a!) output, Tensor input, int group, int sequence, int root) -> ()",
    "barrier(Tensor(a!) token, int group, int sequence) -> ()",
    "send(Tensor tensor, int group, int destination, int tag) -> ()",
    "recv(Tensor(a!) tensor, int group, int source, int tag) -> ()",
    "recv_any(Tensor(a!) tensor, Tensor(b!) source, int group, int tag) -> ()",
)

_library = torch.library.Library("remote_c10d", "DEF")
for schema in _SCHEMAS:
    _library.define(schema)

ops = torch.ops.remote_c10d
