"""URLs of machines: "ssh://user@host?gpu=A100", "kubernetes://context", "local?threads=1"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from torch_remote.providers.provider import MachineError, find_provider


def is_url(text: str) -> bool:
    """Whether the text is more than a provider's name."""
    return "://" in text or "?" in text


def provider_of(url: str) -> str:
    """The part before "://" and "?": "local" for "local", "local://" and "local?threads=1"."""
    return re.split(r"://|\?", url, maxsplit=1)[0]


def read_url(url: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Parses "ssh://user@host:22?gpu=A100&threads=2": returns the provider, and `given` with the URL's arguments. A URL
    without an address may lack the "://"."""
    name = provider_of(url)
    kind = find_provider(name)
    try:
        parts = urlsplit("//" + url.removeprefix(name).removeprefix("://"))
    except ValueError as error:
        raise MachineError(f"remote: {url!r} is not the URL of a machine: {error}; write '{name}://HOST'") from error
    arguments = dict(given)
    address = unquote(parts.netloc + parts.path)
    if address:
        if kind.address is None:
            raise MachineError(f"remote: provider {name!r} has no address; write {name + '://'!r}, not {url!r}")
        arguments[kind.address] = address
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if arguments.get(key) not in (None, 1 if key == "gpu_count" else None):
            raise MachineError(f"remote: {key} is given twice, in {url!r} and as an argument")
        arguments[key] = value
    return name, arguments
