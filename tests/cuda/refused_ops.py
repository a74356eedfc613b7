"""Ops of random programs that the GPU's worker refuses, some of them in some forms only. The list only shrinks."""

REFUSED_OPS = frozenset(
    (
        "aten::_foreach_add_.List",
        "aten::_foreach_addcmul_.Scalar",
        "aten::_foreach_mul_.Scalar",
        "aten::_foreach_mul_.Tensor",
        "aten::add.out",
        "aten::bmm",
        "aten::dot",
        "aten::elu_backward",
        "aten::mm",
        "aten::native_group_norm",
    )
)
