"""Writes the archive of a worker for machines without Python: make_bundle OUT VERSION README LICENSE NAME_IN_IT=FILE...

In addition to the named files it has the licenses of all linked software. The oldest C library that it runs with is
written into README.
"""

import argparse
import gzip
import io
import os
import tarfile
from pathlib import Path

from inside import GLIBC, check, file_name, license_files

from torch_remote.version import sorted_minors


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("version")
    parser.add_argument("readme", type=Path)
    parser.add_argument("license", type=Path)
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()

    files = {name: Path(file) for name, _, file in (entry.partition("=") for entry in args.files)}
    check([file for name, file in files.items() if not name.endswith(".py")])
    owners = license_files()
    files.update({f"licenses/{file_name(name)}": file for name, file in owners.items()})
    files["LICENSE"] = args.license
    readme = args.readme.read_text().replace("{version}", args.version).replace("{glibc}", GLIBC)
    torch = [name.split("/")[1].removeprefix("torch") for name in files if name.endswith("/libaten_plugin.so")]
    readme = readme.replace("{torch}", " or ".join(sorted_minors(torch)))
    readme = readme.replace("{inside}", ", ".join(name for name, file in owners.items() if file.name == "copyright"))

    root = f"torch-remote-worker-{args.version}"
    with open(args.out, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:  # the same bytes each time
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name, file in sorted(files.items()):
                entry = tarfile.TarInfo(f"{root}/{name}")
                entry.size = os.stat(file).st_size  # follows symbolic links
                entry.mode = 0o755 if "/bin/" in name else 0o644
                with file.open("rb") as source:
                    archive.addfile(entry, source)
            entry = tarfile.TarInfo(f"{root}/README.md")
            entry.size = len(readme.encode())
            archive.addfile(entry, io.BytesIO(readme.encode()))
            entry = tarfile.TarInfo(f"{root}/bin/torch-remote-worker")
            entry.type = tarfile.SYMTYPE
            entry.linkname = "../torch_remote/bin/torch-remote-worker"
            archive.addfile(entry)


if __name__ == "__main__":
    main()
