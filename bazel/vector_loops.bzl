"""Compiles hand-written loops for several levels of x86-64."""

def vector_loops(name, loops, deps):
    """Makes the libraries NAME_v3 (AVX2) and NAME_v4 (AVX-512) from the header `loops` and NAME_v3.cpp or NAME_v4.cpp."""
    for level in ["3", "4"]:
        native.cc_library(
            name = name + "_v" + level,
            srcs = [
                loops,
                "%s_v%s.cpp" % (name, level),
            ],
            copts = [
                "-march=x86-64-v" + level,
                "-O3",
                "-fno-math-errno",
                "-ffp-contract=fast",
                "-Wno-maybe-uninitialized",  # a header of the compiler causes it
            ],
            visibility = ["//worker:__subpackages__"],
            deps = deps,
        )
