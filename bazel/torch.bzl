"""torch_library: builds C++ that includes torch, once for each version of torch that the wheel supports."""

load("@torch//:defs.bzl", "TORCH_MINORS")
load("//bazel:unity.bzl", "unity_library")

def of_torch(label, minor):
    """The target that torch_library makes of a label for a version of torch.

    Args:
      label: "//frontend/device", "//frontend/shapes/metas:structured_metas" or ":parallel".
      minor: "2.13".
    """
    if minor == TORCH_MINORS[0]:
        return label
    package, colon, name = label.partition(":")
    return "%s:%s_torch_%s" % (package, name if colon else package.rpartition("/")[2], minor)

def torch_library(name, srcs, torch_deps = [], deps = [], torch = "torch", srcs_of_minor = [], **kwargs):
    """A unity_library for each of TORCH_MINORS. The one for the torch of .venv has the name; see of_torch for the others.

    Args:
      name: of the library.
      srcs: sources, and headers that other components do not include.
      torch_deps: other torch_libraries.
      deps: what does not include torch.
      torch: the target of @torch that it uses.
      srcs_of_minor: further sources, with "{minor}" for the version.
      **kwargs: those of unity_library.
    """
    for minor in TORCH_MINORS:
        unity_library(
            name = of_torch(":" + name, minor)[1:],
            srcs = srcs + [src.format(minor = minor) for src in srcs_of_minor],
            tags = ["torch"],
            deps = deps + [of_torch(dep, minor) for dep in torch_deps] + ["@torch//v%s:%s" % (minor, torch)],
            **kwargs
        )
