"""Ops of random programs that the GPU's worker refuses, some of them in some forms only. The list only shrinks."""

REFUSED_OPS = frozenset(("aten::add.out",))
