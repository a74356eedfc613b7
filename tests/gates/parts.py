"""All parts of the gates, with their counts and limits."""

from __future__ import annotations

import os

from tests.gates.connections import broken_connections, cuts, lost_messages, outages
from tests.gates.failures import LEASE, killed_clients, killed_workers, out_of_memory
from tests.gates.load import oversubscribed, slow_link, soak
from tests.gates.programs import simulated, verified
from tests.gates.results import Part
from tests.gates.strangers import (
    expired_sessions,
    guessed_handles,
    intruders,
    strangers_memory,
    tls_strangers,
    wrong_certificates,
)

SLOW = "{:.2f} s the longest"
PARTS = [
    Part("1", "seeds of the simulator", 100_000, 1_000, 0, simulated),
    Part("2-tcp", "connections broken at random bytes, tcp", 10_000, 500, 10, broken_connections("tcp")),
    Part("2-tls", "connections broken at random bytes, tls", 10_000, 500, 10, broken_connections("tls")),
    Part("3", "`kill -9` of a worker in the middle of a program", 1_000, 50, 2, killed_workers, 2, worst=SLOW),
    Part("4", "`kill -9` of a client", 1_000, 50, 2, killed_clients, LEASE + 1, worst=SLOW),
    Part("5-cuts", "cuts that are resumed", 1_000, 250, 10, cuts, 1, over=0.01, worst=SLOW, ours=True),
    Part("5-outages", "outages of 3 to 45 s", 40, 10, 2, outages, 2, worst="{:.2f} s beyond the outage", ours=True),
    Part("6", "request or answer of a call lost", 840, 168, 42, lost_messages, ours=True),
    Part("7", "memory that runs out, and the next op", 200, 50, 3, out_of_memory),
    Part("8", "guessed handles of another tenant", 1_000_000, 100_000, 1_000, guessed_handles),
    Part("9-tcp", "wrong tokens, repeated and damaged handshakes, tcp", 100_000, 2_000, 100, intruders),
    Part(
        "9-tls", "strangers inside of TLS", 100_000, 2_000, 10, tls_strangers, worst="the listener grew by {:.0f} KiB"
    ),
    Part(
        "9-certificates", "wrong authority, host or date of a certificate", 3_000, 300, 3, wrong_certificates, ours=True
    ),
    Part("9-expired", "sessions and tokens that have expired", 1_000, 101, 5, expired_sessions, ours=True),
    Part(
        "9-memory",
        "strangers whose memory is measured",
        170,
        17,
        0,
        strangers_memory,
        worst="{:.1f} of 64 KiB",
        ours=True,
    ),
    Part("12-link", "MB over 10 Mbit/s", 60, 60, 2, slow_link, worst="the client grew by {:.0f} MB", ours=True),
    Part(
        "12-crowd",
        "clients, ten at a time for each core",
        200,
        10 * (os.cpu_count() or 1),
        2,
        oversubscribed,
        worst="{:.0f} MB in a session",
        ours=True,
    ),
    Part(
        "12-soak",
        "seconds of a soak",
        86_400,
        7_200,
        4,
        soak,
        worst="{:.2f} % larger in all pieces together",
        adds=True,
        least=600,
    ),
    Part("13", "programs of 10,000 ops verified", 20, 20, 1, verified, 0.001, worst="{:.5f} s the longest", ours=True),
]
