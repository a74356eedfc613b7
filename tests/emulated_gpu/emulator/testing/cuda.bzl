"""Compiles kernels in CUDA C++ to LLVM bitcode with clang, without CUDA."""

def cuda_bitcode(name, src, hdrs):
    """Makes NAME.bc, which is not optimized, and has the lines that instructions come from."""
    native.genrule(
        name = name,
        testonly = True,
        srcs = [src] + hdrs,
        outs = [name + ".bc"],
        cmd = " ".join([
            "$(location @clang//:clang++) -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 -nocudainc -nocudalib",
            "-Wno-unknown-cuda-version -std=c++20 -O2 -Xclang -disable-llvm-passes",
            "-Xclang -target-feature -Xclang +ptx83",
            "-gline-tables-only -I. -emit-llvm -c $(location {src}) -o $@".format(src = src),
        ]),
        tools = ["@clang//:clang++"],
    )
