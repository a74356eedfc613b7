"""Writes tests/libfuzzer/corpus anew from real sessions: bazel run //tests/libfuzzer:make_corpus.

Each script below runs on the device while its session is captured. The messages from and to its worker become an input
of each fuzz target, whose sources describe the formats: the messages, the programs, the chunks of the capture, and the
tensor bytes as a peer on a socket would send them. Machine-dependent and time-dependent values are removed, so the same
code always writes the same files.
"""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SESSIONS = {
    "pointwise": """
        x = torch.arange(6.0, device=d)
        for n in (6, 4):
            y = torch.relu(x[:n] * 2 + x[:n])
            print(y.sum().item(), y.tolist())
    """,
    "in_place": """
        x, y = torch.ones(4, device=d), torch.full((4,), 2.0, device=d)
        for _ in range(3):
            x.add_(y)
            x.mul_(0.5)
        print(x.tolist())
    """,
    "dynamic": """
        x = torch.tensor([0.0, 1.0, 2.0], device=d)
        print(torch.nonzero(x).shape, torch.equal(x, x), x[x > 0].tolist())
    """,
    "step": """
        net = torch.nn.Linear(3, 2).to(d)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(2, 3, device=d)).square().mean().backward()
            optimizer.step()
        print(net.weight.tolist())
    """,
    "indices": """
        x = torch.arange(16.0, device=d).reshape(1, 1, 4, 4).requires_grad_()
        torch.nn.functional.max_pool2d(x, 2).sum().backward()
        table = torch.nn.Embedding(4, 2, scale_grad_by_freq=True).to(d)
        table(torch.tensor([1, 3, 1], device=d)).sum().backward()
        print(x.grad.tolist(), table.weight.grad.tolist())
    """,
    "choices": """
        x = torch.arange(6.0, device=d).reshape(2, 3)
        index = torch.tensor([[0, 2, 1], [1, 0, 0]], device=d)
        print(x.gather(1, index).tolist(), x.scatter_add(1, index, x).tolist(), x.topk(2).values.tolist())
    """,
    "failure": """
        x = torch.arange(3, device=d)
        try:
            print(torch.ones(2, device=d)[x].tolist())
        except IndexError:
            pass
        torch.remote.cancel()
        torch.remote.synchronize()
        torch.remote.empty_cache()
        print(torch.remote.mem_get_info()[0] > 0)
    """,
    "files": """
        from torch_remote import _C
        print(_C.find_file(0, "/dev/null")[1])
        call = _C.call_function(0, b"nothing", [torch.ones(2, 3, device=d).t()])
        try:
            _C.wait_function(0, *call[:2], 20.0)
        except RuntimeError:
            pass
        _C.drop_function_results(0, *call)
        x = _C.read_file(0, "/no/such", (8, 1, 2), 4, (4,), torch.uint8)
        try:
            print(x.tolist())
        except RuntimeError:
            pass
    """,
    "profiled": """
        with torch.remote.profile():
            print((torch.rand(3, device=d) + 1).sum().item())
    """,
    "large": """
        x = torch.zeros(9000, device=d)
        x.copy_(torch.zeros(9000))
        print(x[:9000].cpu().sum())
    """,
}

FILE_HEADER, CHUNK_HEADER, FRAME_HEADER = 64, struct.Struct("<IIQQII"), struct.Struct("<IBBHQQII")
INFO, SENT, RECEIVED, SOURCE_GRAPH, END = range(1, 6)  # capture::ChunkType
HELLO, HELLO_REPLY, LOAD_PROGRAM, PROGRESS = 1, 2, 3, 12  # wire::Type
PROFILE_REPLY, PROFILE_PART, MEMORY_REPLY = 17, 18, 20
WANTS_REPLY, ATTACHMENT = 1, 2  # wire::Flags
LARGEST = 16 << 10  # bytes of an input
SMALL_ATTACHMENT = 32 << 10  # bytes; smaller attachments go through the socket


def aligned(size):
    return (size + 63) // 64 * 64


def chunks(data):
    """Yields (type, control, attachment) of each chunk."""
    at = FILE_HEADER
    while at < len(data):
        _, kind, _, attachment, control, _ = CHUNK_HEADER.unpack_from(data, at)
        begin = at + CHUNK_HEADER.size
        behind = at + aligned(CHUNK_HEADER.size + control)
        end = behind + aligned(attachment)
        yield kind, data[begin : begin + control], data[behind : behind + attachment]
        at = end


def chunk(kind, control, attachment):
    """The chunk's bytes. The fuzz target corrects the checksums."""
    header = CHUNK_HEADER.pack(0, kind, 0, len(attachment), len(control), 0)
    result = (header + control).ljust(aligned(CHUNK_HEADER.size + len(control)), b"\0")
    return result + attachment.ljust(aligned(len(attachment)), b"\0")


def frame_type(control):
    return FRAME_HEADER.unpack_from(control)[2]


def without_fields(message, fields):
    """Sets scalar fields of a flatbuffer's root table to 0. `fields` are pairs of (index in the vtable, bytes)."""
    table = struct.unpack_from("<I", message)[0]
    layout = table - struct.unpack_from("<i", message, table)[0]
    count = (struct.unpack_from("<H", message, layout)[0] - 4) // 2
    offsets = struct.unpack_from(f"<{count}H", message, layout + 4)
    result = bytearray(message)
    for place, size in fields:
        if place < count and offsets[place]:
            begin = table + offsets[place]
            result[begin : begin + size] = bytes(size)
    return bytes(result)


def timeless(kind, control, attachment):
    """A frame without the session's number, process id, times and the machine's memory size."""
    header = list(FRAME_HEADER.unpack_from(control))
    message = control[FRAME_HEADER.size :]
    header[4] = 0
    if header[2] == PROFILE_REPLY:
        message = without_fields(message, ((1, 4), (2, 8), (3, 8)))
        attachment = b"".join(bytes(16) + attachment[i + 16 : i + 32] for i in range(0, len(attachment), 32))
    elif header[2] == MEMORY_REPLY:
        message = without_fields(message, ((2, 8), (3, 8)))
    return kind, FRAME_HEADER.pack(*header) + message, attachment


def in_order(session):
    """The session in a fixed order, because the order in the file is random. Progress messages are dropped. Each reply
    follows its request, and each program's source precedes the program."""
    replies, sources, result = {}, [], []
    for kind, control, attachment in session:
        if kind == RECEIVED and frame_type(control) != PROGRESS:
            replies[FRAME_HEADER.unpack_from(control)[5]] = timeless(kind, control, attachment)
        elif kind == SOURCE_GRAPH:
            sources.append((kind, control, attachment))
    for kind, control, attachment in session:
        if kind == SENT:
            if frame_type(control) == LOAD_PROGRAM:
                result.append(sources.pop(0))
            result.append(timeless(kind, control, attachment))
            if reply := replies.get(FRAME_HEADER.unpack_from(control)[5]):
                result.append(reply)
        elif kind not in (RECEIVED, SOURCE_GRAPH):
            result.append((kind, control, attachment))
    return result


def record(source, folder):
    """The chunks of a session that ran `source`."""
    path = Path(folder) / "session.rreplay"
    lines = [line.strip("\n") for line in source.split("\n")]
    body = "\n".join(line[8:] for line in lines)
    environment = {**os.environ, "TORCH_REMOTE_CAPTURE": str(path), "TORCH_REMOTE_WORKER_THREADS": "1"}
    script = f"import torch, torch_remote\ntorch.manual_seed(0)\nd = 'remote'\n{body}"
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, stdout=subprocess.DEVNULL)
    session = list(chunks(path.read_bytes()))
    # A long profile arrives in parts, cut at random positions; such a session is recorded again.
    if any(kind == RECEIVED and frame_type(control) == PROFILE_PART for kind, control, _ in session):
        return record(source, folder)
    return in_order(session)


def frames(session, direction):
    """Yields (type, flags, control, attachment) of the frames in one direction, except for the hello."""
    for kind, control, attachment in session:
        if kind == direction:
            _, _, number, flags, *_ = FRAME_HEADER.unpack_from(control)
            if number not in (HELLO, HELLO_REPLY):
                yield number, flags, control[FRAME_HEADER.size :], attachment


def messages(session):
    """The messages up to the first that is too long. Before the first program comes an empty one with the same
    number."""
    result = b""
    for number, flags, control, attachment in frames(session, SENT):
        if number == LOAD_PROGRAM and not result:
            result += struct.pack("<BBHH", number, ATTACHMENT, len(control), 0) + control
        if len(control) > 0xFFFF or len(attachment) > 0xFFFF:
            break
        # a capture has the frame as it is before the transport
        flags = flags & WANTS_REPLY | (ATTACHMENT if attachment else 0)
        result += struct.pack("<BBHH", number, flags, len(control), len(attachment)) + control + attachment
    return result


def capture(session):
    """The capture without chunks that describe the machine."""
    kept = []
    for kind, control, attachment in session:
        if kind in (SENT, RECEIVED) and frame_type(control) in (HELLO, HELLO_REPLY):
            continue
        if kind != INFO:
            kept.append(chunk(kind, control, attachment))
    return b"\0" + b"".join(kept)


def attachments(session):
    """Commands of tests/libfuzzer/attachments.cpp. Segments are numbered from 1, and have the transport's seals."""
    announce, inside, lend, segments, allocate, receive, forget = range(1, 8)
    result, number, token = b"", 0, 0
    for _, _, _, attachment in frames(session, SENT):
        size = len(attachment)
        if 0 < size < SMALL_ATTACHMENT:
            result += struct.pack("<BH", inside, size) + attachment
        elif size:
            number, token = number + 1, token + 1
            result += struct.pack("<BIIIB", announce, number, aligned(size), aligned(size), 7)
            result += struct.pack("<BIQQQI", lend, number, 0, size, token, 0)
    for _, _, _, attachment in frames(session, RECEIVED):
        if attachment:
            result += struct.pack("<BI", allocate, max(len(attachment), SMALL_ATTACHMENT))
            token += 1
    result += bytes([receive, forget])
    if number:
        result += struct.pack("<BIHQ", segments, 3, 1, number)  # retires the segment
    return result + bytes([receive])


def main():
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY")
    if workspace is None:
        sys.exit("make_corpus writes into the checkout: bazel run //tests/libfuzzer:make_corpus")
    corpus = Path(workspace) / "tests/libfuzzer/corpus"
    for target in ("messages", "captures", "attachments", "programs"):  # the others are hand-written
        shutil.rmtree(corpus / target, ignore_errors=True)

    def write(target, name, data):
        if 0 < len(data) <= LARGEST:
            (corpus / target).mkdir(parents=True, exist_ok=True)
            (corpus / target / name).write_bytes(data)
            print(f"{target}/{name}: {len(data)} bytes")

    for name, source in SESSIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            session = record(source, folder)
        write("messages", name, messages(session))
        write("captures", name, capture(session))
        write("attachments", name, attachments(session))
        programs = {a for number, _, _, a in frames(session, SENT) if number == LOAD_PROGRAM}
        programs |= {attachment for kind, _, attachment in session if kind == SOURCE_GRAPH}
        for i, program in enumerate(sorted(programs, key=lambda program: (len(program), program))):
            write("programs", f"{name}.{i}", program)


if __name__ == "__main__":
    main()
