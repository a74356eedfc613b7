"""fuzz_target: a libFuzzer binary, and a test that replays its corpus."""

def fuzz_target(name, srcs, corpus, deps = [], inputs = 3000, tags = [], **kwargs):
    """Two targets from one source, which defines LLVMFuzzerTestOneInput (tests/libfuzzer/fuzzer.h).

    `NAME` is the fuzzer, which is built with `bazel build --config=fuzz` and run by hand (docs/build.md). `NAME_test` is
    a normal test. It replays the corpus, each file of which the target must accept, and inputs that it makes from the
    corpus. These are always the same.

    Args:
      name: of the fuzzer.
      srcs: of the target.
      corpus: label of its corpus, a filegroup.
      deps: libraries.
      inputs: the number of inputs that the test makes.
      tags: of both.
      **kwargs: passed to the test.
    """
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        linkopts = ["-fsanitize=fuzzer"],
        tags = tags + ["manual"],  # gcc has no libFuzzer
        deps = deps + ["//tests/libfuzzer:fuzzer"],
    )
    native.cc_test(
        name = name + "_test",
        srcs = srcs + ["//tests/libfuzzer:replay.cpp"],
        args = ["--inputs=%d" % inputs, "$(locations %s)" % corpus],
        data = [corpus],
        tags = tags,
        deps = deps + ["//tests/libfuzzer:fuzzer"],
        **kwargs
    )
