"""Finds @cuda//:nvjitlink in NVIDIA's packages in .venv. This library compiles PTX to machine code, and needs no GPU."""

_LIBRARY = "libnvJitLink.so.13"

_FIND = """
import importlib.metadata as m
print(*(f.locate() for f in m.files("nvidia-nvjitlink") if f.name == "%s"))
""" % _LIBRARY

_BUILD = """
package(default_visibility = ["//visibility:public"])

filegroup(name = "nvjitlink", srcs = ["{library}"])
"""

def _impl(ctx):
    venv = ctx.path(Label("@torch_remote_src//:WORKSPACE")).dirname.get_child(".venv")
    if not venv.get_child("stamp.wheel").exists:
        fail("nvidia-nvjitlink is missing in .venv: `./bazelw build //:wheel` installs it")
    ctx.path(Label("@torch_remote_src//:.venv/stamp.wheel"))  # a new environment makes Bazel evaluate this rule again
    result = ctx.execute([venv.get_child("bin").get_child("python"), "-c", _FIND])
    if result.return_code or not result.stdout.strip():
        fail("nvidia-nvjitlink has no %s: %s" % (_LIBRARY, result.stderr))
    ctx.symlink(result.stdout.strip(), _LIBRARY)
    ctx.file("BUILD.bazel", _BUILD.format(library = _LIBRARY))

cuda_repository = repository_rule(implementation = _impl, local = True)
