"""Writes entry_points.txt of a distribution from its pyproject.toml: entry_points PYPROJECT OUT."""

import sys
import tomllib


def main(pyproject, out):
    with open(pyproject, "rb") as file:
        project = tomllib.load(file)["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    with open(out, "w") as file:
        for group, entries in groups.items():
            file.write(f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items()) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
