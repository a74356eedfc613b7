"""Kernels in CUDA C++, by clang, without CUDA: as machine code for GPUs, and as bitcode for the one in software."""

_FLAGS = " ".join([
    "-x cuda --cuda-device-only --cuda-gpu-arch=sm_80 -nocudainc -nocudalib -Wno-unknown-cuda-version",
    "-std=c++20 -O3 -ffp-contract=off -Xclang -target-feature -Xclang +ptx83 -I. -I$(GENDIR)",
])

def hand_written_kernels(name, srcs, hdrs):
    """Libraries' parts NAME.o (machine code, and PTX for GPUs to come) and NAME_bitcode.o, of archives of all files in
    their order, behind the symbols torch_remote_NAME and torch_remote_NAME_end; and each file's .ptx."""
    for src in srcs:
        for suffix, how in ((".ptx", "-S"), (".bc", "-gline-tables-only -emit-llvm -c")):
            native.genrule(
                name = src[:-3] + suffix + "_of_kernels",
                srcs = [src] + hdrs,
                outs = [src[:-3] + suffix],
                cmd = "$(location @clang//:clang++) %s %s $(location %s) -o $@" % (_FLAGS, how, src),
                tools = ["@clang//:clang++"],
            )
    for output, suffix, how, data in (
        (name, ".ptx", "--assemble $(location @cuda//:nvjitlink)", ["@cuda//:nvjitlink"]),
        (name + "_bitcode", ".bc", "--bitcode", []),
    ):
        files = [src[:-3] + suffix for src in srcs]
        native.genrule(
            name = output + "_archive",
            srcs = files + data,
            outs = [
                output + ".archive",
                output + ".log",
            ],
            cmd = "$(location :kernel_archive) $(OUTS) %s %s" % (how, " ".join(["$(location %s)" % f for f in files])),
            tools = [":kernel_archive"],
        )
        native.genrule(
            name = output + "_object",
            srcs = [":%s.archive" % output],
            outs = [output + ".o"],
            cmd = "printf '{}' $< | $(location @clang//:clang++) -c -x assembler - -o $@".format("\\n".join([
                ".section .rodata",
                ".balign 16",
                ".globl {0}, {0}_end".format("torch_remote_" + output),
                "{0}: .incbin \"%s\"".format("torch_remote_" + output),
                "{0}_end: .byte 0".format("torch_remote_" + output),
                ".section .note.GNU-stack,\"\",@progbits",
                "",
            ])),
            tools = ["@clang//:clang++"],
        )
