"""Kernels in CUDA C++, which Clang compiles without CUDA's headers: to machine code of GPUs, and to bitcode for the GPU
emulator."""

# PTX 8.0 is the newest ISA that the oldest supported driver (525, CUDA 12.0) assembles. Without the feature, Clang writes
# the newest ISA that it knows, which drivers before 555 refuse.
_FLAGS = " ".join([
    "-x cuda --cuda-device-only -nocudainc -nocudalib -Wno-unknown-cuda-version --cuda-feature=+ptx80",
    "-std=c++20 -O3 -ffp-contract=off -I. -I$(GENDIR)",
])

# Compute capabilities that have PTX of their own. kernel_archive.cpp lists the machine code that is made of it.
_PTX = (75, 80)

def hand_written_kernels(name, srcs, hdrs):
    """Object files with archives of all sources, in their order: NAME.o (machine code and PTX) and NAME_bitcode.o.

    Each object file has the archive between the symbols torch_remote_NAME and torch_remote_NAME_end. The PTX of a source
    is SOURCE.sm_N.ptx."""
    outputs = [(".sm_%d.ptx" % sm, sm, "-S") for sm in _PTX]
    outputs.append((".bc", 80, "-gline-tables-only -emit-llvm -c"))
    for src in srcs:
        for suffix, sm, how in outputs:
            native.genrule(
                name = src[:-3] + suffix + "_of_kernels",
                srcs = [src] + hdrs,
                outs = [src[:-3] + suffix],
                cmd = "$(location @clang//:clang++) %s --cuda-gpu-arch=sm_%d %s $(location %s) -o $@" %
                      (_FLAGS, sm, how, src),
                tools = ["@clang//:clang++"],
            )
    ptx = [(sm, [src[:-3] + ".sm_%d.ptx" % sm for src in srcs]) for sm in _PTX]
    bitcode = [src[:-3] + ".bc" for src in srcs]
    assemble = "--assemble $(location @cuda//:nvjitlink)"
    for sm, files in ptx:
        assemble += " --ptx %d %s" % (sm, " ".join(["$(location %s)" % f for f in files]))
    for output, files, how in (
        (name, [f for _, files in ptx for f in files] + ["@cuda//:nvjitlink"], assemble),
        (name + "_bitcode", bitcode, "--bitcode " + " ".join(["$(location %s)" % f for f in bitcode])),
    ):
        native.genrule(
            name = output + "_archive",
            srcs = files,
            outs = [
                output + ".archive",
                output + ".log",
            ],
            cmd = "$(location :kernel_archive) $(OUTS) %s" % how,
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
