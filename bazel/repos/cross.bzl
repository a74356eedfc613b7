"""Finds the libraries for aarch64, which bazel/cross.sh unpacks, and declares the cross compiler that uses them."""

_BUILD = """
load("@torch_remote_src//bazel/cross:toolchain.bzl", "cross_toolchain")

package(default_visibility = ["//visibility:public"])

cross_toolchain(name = "toolchain", sysroot = "{sysroot}")
"""

def sysroot(ctx):
    """Returns the path of the folder with the libraries for aarch64. It may not exist.

    Args:
      ctx: of a repository rule.
    """
    cache = ctx.os.environ.get("XDG_CACHE_HOME") or ctx.os.environ.get("HOME", "") + "/.cache"
    return ctx.path(cache + "/torch-remote/sysroot/aarch64")

def _impl(ctx):
    folder = sysroot(ctx)
    if not folder.get_child("stamp").exists:
        fail("%s is missing: run bazel/cross.sh aarch64 sysroot" % folder)
    ctx.file("BUILD.bazel", _BUILD.format(sysroot = folder))

cross_repository = repository_rule(implementation = _impl, local = True)
