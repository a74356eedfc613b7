"""Links programs and libraries that run with older C libraries than that of the machine that links them (bazel/glibc)."""

_STUBS = "$(GENDIR)/bazel/glibc/stubs"

# The project's own archives are not in the list, as their entry points are exported. Bazel links archives only if the
# linker gold is not installed; otherwise it links their objects. (A library that contains LLVM has a version script.)
_SYSTEM_ARCHIVES = ["lib%s.a" % name for name in ["crypto", "c_nonshared", "gcc", "gcc_eh", "ssl", "stdc++", "z", "zstd"]]

def _portable(rule, shares_cxx_library = False, additional_linker_inputs = [], deps = [], linkopts = [], **kwargs):
    folder = "%s/%s" % (_STUBS, "shared" if shares_cxx_library else "static")
    rule(
        additional_linker_inputs = additional_linker_inputs + select({
            "//bazel/glibc:machines_own": [],
            "//conditions:default": ["//bazel/glibc:stubs"],
        }),
        linkopts = linkopts + ["-Wl,--exclude-libs," + ":".join(_SYSTEM_ARCHIVES)] + select({
            "//bazel/glibc:machines_own": [],
            "//conditions:default": ["-L" + _STUBS, "-L" + folder],
        }),
        deps = deps + select({
            "//bazel/glibc:machines_own": [],
            "//conditions:default": ["//bazel/glibc:shims"],
        }),
        **kwargs
    )

def portable_binary(name, **kwargs):
    """A cc_binary that needs no glibc newer than 2.28.

    Symbols of static libraries of the system are not exported.

    Args:
      name: of the binary.
      **kwargs: those of cc_binary, and shares_cxx_library. If that is set, the binary uses the process's C++ library, so
        that it can exchange exceptions and objects with other libraries, such as torch. Otherwise it contains its own.
    """
    _portable(native.cc_binary, name = name, **kwargs)

def portable_test(name, **kwargs):
    """A cc_test that is linked in the same way.

    Args:
      name: of the test.
      **kwargs: those of cc_test.
    """
    _portable(native.cc_test, name = name, **kwargs)
