"""Writes @project//:defs.bzl with the version, which it reads from python/torch_remote/version.py, and the URL of the
repository, which is in the environment of a release (a fork has another URL)."""

def _impl(ctx):
    # Naming a file by its label makes Bazel evaluate this rule again when it changes.
    text = ctx.read(ctx.path(Label("@torch_remote_src//:python/torch_remote/version.py")))
    version = text.partition('\n__version__ = "')[2].partition('"')[0]
    if not version:
        fail('python/torch_remote/version.py lacks a line __version__ = "..."')
    ctx.file("BUILD.bazel", "")
    url = ctx.os.environ.get("REPOSITORY_URL", "")
    ctx.file("defs.bzl", 'VERSION = "%s"\nREPOSITORY_URL = "%s"\n' % (version, url))

project_repository = repository_rule(implementation = _impl, local = True, environ = ["REPOSITORY_URL"])
