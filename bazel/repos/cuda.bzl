"""Finds @cuda//:nvjitlink in NVIDIA's packages in .venv. This library compiles PTX to machine code, and needs no GPU.

We use the library of CUDA 12, because drivers before 580 refuse machine code of CUDA 13."""

_PACKAGE = "nvidia-nvjitlink-cu12"
_LIBRARY = "libnvJitLink.so.12"

_FIND = """
import importlib.metadata as m
print(*(f.locate() for f in m.files("%s") if f.name == "%s"))
""" % (_PACKAGE, _LIBRARY)

_BUILD = """
package(default_visibility = ["//visibility:public"])

filegroup(name = "nvjitlink", srcs = ["{library}"])
"""

def _impl(ctx):
    venv = ctx.path(Label("@torch_remote_src//:WORKSPACE")).dirname.get_child(".venv")
    if not venv.get_child("stamp.wheel").exists:
        fail("%s is missing in .venv: `./bazelw build //:wheel` installs it" % _PACKAGE)
    ctx.path(Label("@torch_remote_src//:.venv/stamp.wheel"))  # a new environment makes Bazel evaluate this rule again
    result = ctx.execute([venv.get_child("bin").get_child("python"), "-c", _FIND])
    if result.return_code or not result.stdout.strip():
        fail("%s has no %s: %s" % (_PACKAGE, _LIBRARY, result.stderr))
    ctx.symlink(result.stdout.strip(), _LIBRARY)
    ctx.file("BUILD.bazel", _BUILD.format(library = _LIBRARY))

cuda_repository = repository_rule(implementation = _impl, local = True)
