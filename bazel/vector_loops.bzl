"""Compiles hand-written loops for several instruction sets."""

_LEVELS = {
    "neon": "armv8-a",
    "v3": "x86-64-v3",
    "v4": "x86-64-v4",
}

def vector_loops(name, loops, deps):
    """Makes the library NAME of the levels of the processor that is built for: v3 (AVX2) and v4 (AVX-512), or neon.

    Args:
      name: of the library.
      loops: the source, in which TORCH_REMOTE_ISA is the name of the level.
      deps: of each level.
    """
    for level, processor in _LEVELS.items():
        native.cc_library(
            name = "%s_%s" % (name, level),
            srcs = [loops],
            copts = [
                "-march=" + processor,
                "-O3",
                "-fno-math-errno",
                "-ffp-contract=fast",
                "-Wno-maybe-uninitialized",  # a header of the compiler causes it
            ],
            local_defines = ["TORCH_REMOTE_ISA=" + level],
            tags = ["manual"],  # what is built for a processor has only its own levels
            deps = deps,
        )
    native.cc_library(
        name = name,
        visibility = ["//worker:__subpackages__"],
        deps = select({
            "//bazel/cross:aarch64": [":%s_neon" % name],
            "//conditions:default": [":%s_v3" % name, ":%s_v4" % name],
        }),
    )
