"""Draws the pictures of docs/architecture.md.

    ./bazelw run //docs/site:pictures             writes docs/components.svg and docs/flush.svg
    ./bazelw run //docs/site:pictures -- --check  fails if they are not what it would write

The components are those of the table in docs/architecture.md. The picture must name each of them once.
"""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from generated import write_or_check

FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
INK, MUTED, LINE = "#1f2933", "#52606d", "#9aa5b1"
FILLS = {"client": "#e3f2fd", "wire": "#fff3e0", "worker": "#e8f5e9", "code": "#f3e5f5", "torch": "#ffebee"}


@dataclass
class Drawing:
    """Shapes, and the SVG that has them. Lengths are in pixels."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = LINE) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{stroke}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: int = 13,
        anchor: str = "start",
        color: str = INK,
        bold: bool = False,
        note: str = "",
    ) -> None:
        """`note`: smaller, behind it."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{color}"{weight}>'
            f"{escape(text)}"
            + (f'<tspan dx="9" font-size="11" fill="{MUTED}">{escape(note)}</tspan>' if note else "")
            + "</text>"
        )

    def arrow(self, *points: tuple[float, float], label: str = "", both: bool = False) -> None:
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        start = ' marker-start="url(#arrow)"' if both else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke="{MUTED}"{start} marker-end="url(#arrow)"/>')
        if label:
            (x0, y0), (x1, y1) = points[0], points[1]
            self.text((x0 + x1) / 2 + 8, (y0 + y1) / 2 + 4, label, 12, color=MUTED)

    def svg(self) -> str:
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" font-family="{FONT}" role="img">',
                f"<title>{escape(self.title)}</title>",
                '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
                f'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{MUTED}"/></marker></defs>',
                f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


# -- components --------------------------------------------------------------------------------------------------------

# Rows of boxes: the box's title, its kind, and the components in it with what stands behind each one.
CLIENT = [
    (
        "your process: Python",
        "client",
        [("python", "torch_remote, the command, the wheel"), ("tools", "remote-dump, …")],
    ),
    (
        "PyTorch device",
        "torch",
        [
            ("frontend", "_C"),
            ("frontend/ops", "dispatcher kernels"),
            ("frontend/shapes", "metadata of results"),
            ("frontend/record", "hot path"),
            ("frontend/device", "trace to program"),
            ("frontend/compile", "torch.compile"),
            ("frontend/hooks", "device hooks"),
            ("frontend/inspect", "graphs, profiles"),
            ("frontend/distributed", "process groups"),
            ("frontend/source", "lines of user code"),
            ("frontend/versions", "versions of torch"),
        ],
    ),
    ("program", "client", [("ir", "op table, graph, text"), ("passes", "one file per pass")]),
]
WIRE = [
    (
        "connection",
        "wire",
        [
            ("remote/client", "what to send"),
            ("remote/wire", "messages"),
            ("remote/transport", "shared memory, sockets"),
            ("remote/net", "TCP, TLS, resuming"),
            ("remote/providers", "starts workers"),
            ("remote/capture", "sessions on disk"),
        ],
    )
]
WORKER = [
    ("process", "worker", [("worker/process", "listener"), ("worker/sandbox", "restricts a session")]),
    (
        "session",
        "worker",
        [
            ("worker/server", "messages"),
            ("worker/session", "programs, buffers, failures"),
            ("worker/shadow", "compares results"),
            ("worker/device", "interface: memory, tickets"),
            ("worker/runner", "interface: executes nodes"),
            ("worker/collectives", "process groups"),
        ],
    ),
]
TARGETS = [
    (
        "CPU",
        "worker",
        [
            ("worker/targets", "interface"),
            ("worker/targets/cpu", "the ordered runners"),
            ("worker/targets/cpu/compiled", ""),
            ("worker/targets/cpu/loops", ""),
            ("worker/targets/reference", "by definition"),
        ],
    ),
    (
        "libtorch",
        "torch",
        [("worker/targets/aten", ""), ("worker/targets/aten/checks", ""), ("worker/targets/aten/kernels", "")],
    ),
    (
        "NVIDIA GPU",
        "worker",
        [
            ("worker/targets/cuda", "the ordered runners"),
            ("worker/targets/cuda/compiled", ""),
            ("worker/targets/cuda/gemm", "cuBLASLt"),
            ("worker/targets/cuda/dnn", "cuDNN"),
            ("worker/targets/cuda/ops", "plans of launches"),
            ("worker/targets/cuda/kernels", "CUDA C++"),
            ("worker/targets/cuda/launch", ""),
            ("worker/targets/cuda/self_test", ""),
            ("worker/targets/cuda/device", "driver, NCCL"),
        ],
    ),
    (
        "code generation",
        "code",
        [
            ("codegen/lower", "nodes to LoopIR"),
            ("codegen/loop", "LoopIR, interpreter"),
            ("codegen/formulas", "LoopIR to CUDA C++"),
            ("codegen/cpu", "MLIR, LLVM"),
            ("codegen/gpu", "NVPTX, nvJitLink"),
            ("codegen/library", "opened by the worker"),
        ],
    ),
]
LANES = [("client", CLIENT), ("connection", WIRE), ("worker", WORKER), ("targets", TARGETS)]

TITLE, ROW, GAP, MARGIN = 26, 19, 14, 16


def table_of(page: str) -> list[str]:
    """The components that the page's table lists."""
    return re.findall(r"^\| `([a-z/_]+)/` \|.*\|$", page, re.M)


def components(page: str) -> str:
    named = [name for _, boxes in LANES for _, _, rows in boxes for name, _ in rows]
    listed = table_of(page)
    if sorted(named) != sorted(listed):
        missing, extra = set(listed) - set(named), set(named) - set(listed)
        sys.exit(f"docs/site/pictures.py: the table has {sorted(missing)} in addition, the picture {sorted(extra)}")
    width = 1120
    drawing = Drawing(width, 0, "The components of torch-remote, from the user's process to the targets of a worker")
    y = float(MARGIN)
    middle = []
    for lane, boxes in LANES:
        inner = width - 2 * MARGIN - 110
        longest = [max(len(name) + len(note) for name, note in rows) + 12 for _, _, rows in boxes]
        widths = [(inner - GAP * (len(boxes) - 1)) * chars / sum(longest) for chars in longest]
        columns = [2 if len(rows) > 5 and each > 400 else 1 for each, (_, _, rows) in zip(widths, boxes, strict=True)]
        heights = [
            TITLE + ROW * -(-len(rows) // column) + 8 for (_, _, rows), column in zip(boxes, columns, strict=True)
        ]
        height = max(heights)
        drawing.text(MARGIN, y + 18, lane, 14, bold=True, color=MUTED)
        x = float(MARGIN + 110)
        for (title, kind, rows), column, each in zip(boxes, columns, widths, strict=True):
            drawing.box(x, y, each, height, FILLS[kind])
            drawing.text(x + 10, y + 18, title, 13, bold=True)
            down = -(-len(rows) // column)
            for i, (name, note) in enumerate(rows):
                at = x + 10 + (i // down) * each / column
                row = y + TITLE + ROW * (i % down) + 12
                short = (
                    name.removeprefix("worker/targets/").replace("worker/targets", "targets")
                    if lane == "targets"
                    else name
                )
                drawing.text(at, row, short, 12, note=note)
            x += each + GAP
        middle.append((y, y + height))
        y += height + 34
    for (_, bottom), (top, _) in itertools.pairwise(middle):
        drawing.arrow((width / 2, bottom + 4), (width / 2, top - 4), both=True)
    drawing.height = int(y - 34 + MARGIN)
    return drawing.svg()


# -- the path of a flush -----------------------------------------------------------------------------------------------

# Title, kind, what happens there, the component.
STEPS = [
    ("your script", "client", "y = x * 1.5 + b; y.sum().item()", ""),
    ("dispatcher kernel", "torch", "one boxed kernel per ATen op", "frontend/ops"),
    ("recorder", "torch", "shapes of results now; the call goes into the trace; nothing runs", "frontend/record"),
    (
        "sync point",
        "torch",
        "the trace is cut into key (structure) and parameters (sizes, numbers, seeds)",
        "frontend/device",
    ),
    ("passes", "client", "only for a new key: lift, canonicalize, cse, accumulate, dce, layout, fuse, plan", "passes"),
    ("message", "wire", "program number, changed parameters, buffer ids; the program itself once", "remote"),
    (
        "session",
        "worker",
        "verifies a program once, places buffers, chooses a runner per group and node",
        "worker/session",
    ),
    ("runners", "worker", "compiled kernels, libraries, ATen: the first that takes a group or node", "worker/targets"),
    ("reply", "wire", "4 bytes for .item()", "remote"),
]


def flush() -> str:
    width, box, height, gap = 860, 720, 46, 26
    drawing = Drawing(width, 0, "The path of a flush: from an op in your script to the reply of .item()")
    y = float(MARGIN)
    for i, (title, kind, text, component) in enumerate(STEPS):
        drawing.box(MARGIN, y, box, height, FILLS[kind])
        drawing.text(MARGIN + 12, y + 19, title, 13, bold=True)
        drawing.text(MARGIN + 12, y + 37, text, 12, color=INK)
        drawing.text(MARGIN + box - 12, y + 19, component, 12, anchor="end", color=MUTED)
        if i + 1 < len(STEPS):
            label = {3: "key is new"}.get(i, "")
            drawing.arrow((MARGIN + 60, y + height), (MARGIN + 60, y + height + gap - 1), label=label)
        if title == "sync point":
            x = MARGIN + box + 44
            to = y + 2 * (height + gap) + height / 2
            drawing.arrow((MARGIN + box, y + height / 2), (x, y + height / 2), (x, to), (MARGIN + box + 3, to))
            drawing.text(x + 6, y + height + gap + 14, "key is", 12, color=MUTED)
            drawing.text(x + 6, y + height + gap + 30, "known", 12, color=MUTED)
        y += height + gap
    drawing.height = int(y - gap + MARGIN)
    return drawing.svg()


def make(root: Path) -> dict[str, str]:
    return {
        "docs/components.svg": components((root / "docs/architecture.md").read_text()),
        "docs/flush.svg": flush(),
    }


if __name__ == "__main__":
    write_or_check("//docs/site:pictures", __doc__, make)
