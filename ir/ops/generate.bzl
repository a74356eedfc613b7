"""Generates the outputs of the op table."""

load("@torch//:defs.bzl", "TORCH_VERSION")

def op_table_files(name, outputs):
    """Writes forms of the op table with a genrule.

    Args:
      name: of the rule.
      outputs: form ("header", "source", "json", "docs", "composed", "call_checks", "kernel_dtypes", "expansions",
        "relations", "cuda_plans", "aten_kernels", "hazards", "casts", "data_errors") to file name.
    """
    matrix = ["//tests/ops:matrix.json"] if "docs" in outputs else []
    native.genrule(
        name = name,
        srcs = matrix + [
            "//ir/ops:composed_ops.h",
            "//ir/fusion:fusion.h",
            "//ir/ops:op_table.h",
            "//ir/ops:scalar_tree.h",
            "//ir/ops:conventions.toml",
            "//ir/ops:lists",
            "//ir/ops:tables",
        ],
        outs = outputs.values(),
        # torch's schemas are not a declared input. The version in the command makes the generator run again for another
        # torch.
        cmd = " ".join(
            ["$(execpath //ir/ops/generator:generate) --torch_version " + TORCH_VERSION] +
            ["--table_header $(execpath //ir/ops:op_table.h) --conventions $(execpath //ir/ops:conventions.toml)"] +
            ["--%s $(execpath %s)" % (form, file) for form, file in outputs.items()] +
            ["--matrix $(execpath %s)" % file for file in matrix] +
            ["$(execpaths //ir/ops:tables)"],
        ),
        tools = ["//ir/ops/generator:generate"],
    )
