"""Hand-written loops for several levels of x86-64."""

def vector_loops(name, loops, deps):
    """Libraries NAME_v3 and NAME_v4, of the header `loops` and NAME_v3.cpp or NAME_v4.cpp: AVX2 and AVX-512."""
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
                "-Wno-maybe-uninitialized",  # in the compiler's own header
            ],
            visibility = ["//worker:__subpackages__"],
            deps = deps,
        )
