"""cross_toolchain: Debian's cross compiler for aarch64, with the libraries of a folder (bazel/cross.sh makes it)."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl", "feature", "flag_group", "flag_set", "tool_path", "with_feature_set")

_TRIPLE = "aarch64-linux-gnu"
_COMPILE = [
    ACTION_NAMES.assemble,
    ACTION_NAMES.c_compile,
    ACTION_NAMES.cpp_compile,
    ACTION_NAMES.cpp_header_parsing,
    ACTION_NAMES.linkstamp_compile,
    ACTION_NAMES.preprocess_assemble,
]
_LINK = [
    ACTION_NAMES.cpp_link_dynamic_library,
    ACTION_NAMES.cpp_link_executable,
    ACTION_NAMES.cpp_link_nodeps_dynamic_library,
]

def _flags(actions, flags, features = []):
    return flag_set(
        actions = actions,
        flag_groups = [flag_group(flags = flags)],
        with_features = [with_feature_set(features = features)] if features else [],
    )

def _impl(ctx):
    sysroot = ctx.attr.sysroot
    tools = {"gcc": "g++", "cpp": "cpp", "ar": "ar", "ld": "ld", "nm": "nm", "objdump": "objdump", "strip": "strip", "gcov": "gcov"}
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        toolchain_identifier = "aarch64",
        host_system_name = "local",
        target_system_name = _TRIPLE,
        target_cpu = "aarch64",
        target_libc = "glibc",
        compiler = "gcc",
        abi_version = "gcc",
        abi_libc_version = "glibc",
        cxx_builtin_include_directories = [
            "/usr/lib/gcc-cross/" + _TRIPLE,
            "/usr/" + _TRIPLE + "/include",
            sysroot + "/usr/include",
        ],
        tool_paths = [tool_path(name = name, path = "/usr/bin/%s-%s" % (_TRIPLE, tool)) for name, tool in tools.items()],
        features = [
            feature(name = "supports_pic", enabled = True),
            feature(name = "opt"),
            feature(name = "dbg"),
            feature(name = "default_compile_flags", enabled = True, flag_sets = [
                # `char` is signed and a * b + c is rounded twice, as on x86-64, so that both compute the same.
                _flags(_COMPILE, ["-fsigned-char", "-ffp-contract=off", "-fstack-protector", "-fno-omit-frame-pointer"]),
                _flags(_COMPILE, ["-g0", "-O2", "-DNDEBUG", "-D_FORTIFY_SOURCE=1", "-ffunction-sections", "-fdata-sections"], ["opt"]),
                _flags(_COMPILE, ["-g"], ["dbg"]),
                _flags(_COMPILE, ["-fno-canonical-system-headers", "-Wno-builtin-macro-redefined", "-D__DATE__=\"redacted\"", "-D__TIMESTAMP__=\"redacted\"", "-D__TIME__=\"redacted\""]),
                _flags(_COMPILE, ["-isystem", sysroot + "/usr/include", "-isystem", sysroot + "/usr/include/" + _TRIPLE]),
            ]),
            feature(name = "default_link_flags", enabled = True, flag_sets = [
                _flags(_LINK, ["-Wl,-z,relro,-z,now", "-L%s/usr/lib/%s" % (sysroot, _TRIPLE), "-lstdc++", "-lm"]),
                _flags(_LINK, ["-Wl,--gc-sections"], ["opt"]),
            ]),
        ],
    )

cross_toolchain_config = rule(
    implementation = _impl,
    attrs = {"sysroot": attr.string(mandatory = True)},
    provides = [CcToolchainConfigInfo],
)

def cross_toolchain(name, sysroot):
    """Makes a cc_toolchain_suite for --crosstool_top.

    Args:
      name: of the suite.
      sysroot: the folder with the libraries.
    """
    native.filegroup(name = "no_files")
    cross_toolchain_config(name = "config", sysroot = sysroot)
    native.cc_toolchain(
        name = "compiler",
        all_files = ":no_files",
        ar_files = ":no_files",
        as_files = ":no_files",
        compiler_files = ":no_files",
        dwp_files = ":no_files",
        linker_files = ":no_files",
        objcopy_files = ":no_files",
        strip_files = ":no_files",
        supports_param_files = True,
        toolchain_config = ":config",
        toolchain_identifier = "aarch64",
    )
    native.cc_toolchain_suite(
        name = name,
        toolchains = {"aarch64": ":compiler", "aarch64|gcc": ":compiler"},
    )
