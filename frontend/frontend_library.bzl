"""frontend_library: builds the C++ of one folder of the frontend, for each version of torch."""

load("//bazel:torch.bzl", "torch_library")

def frontend_library(name, srcs, deps = [], torch_deps = [], hdrs = [], separate = [], visibility = ["//frontend:__subpackages__"]):
    """Makes a cc_library that is always linked as a whole, because kernels register themselves.

    Args:
      name: of the folder.
      srcs: sources, and headers that other components do not include.
      separate: sources of which single calls are measured; see unity_library.
      deps: components that do not include torch.
      torch_deps: components that do.
      hdrs: headers for other components.
      visibility: who may depend on it.
    """
    torch_library(
        name = name,
        srcs = srcs,
        separate = separate,
        hdrs = hdrs,
        copts = [
            "-O3",
            "-falign-functions=64",
            # The budget for inlining grows with the unit, so what is inlined into one function depends on the other
            # functions. A large limit takes that dependency away.
            "--param=inline-unit-growth=400",
        ],
        visibility = visibility,
        deps = deps,
        torch_deps = torch_deps,
        torch = "extension",
        alwayslink = True,
    )
