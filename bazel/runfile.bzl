"""runfile: a file that programs which depend on it find under another path."""

def _impl(ctx):
    return [DefaultInfo(runfiles = ctx.runfiles(symlinks = {ctx.attr.path: ctx.file.src}))]

runfile = rule(
    implementation = _impl,
    attrs = {
        "path": attr.string(mandatory = True, doc = "of the file among the runfiles, relative to the workspace"),
        "src": attr.label(mandatory = True, allow_single_file = True),
    },
)
