"""A short run of the compiled random programs; `compiled_programs.py --count 1000` is a longer one."""

from commit import chosen_seed
from compiled_programs import check, function_of

PROGRAMS = 60
# The seed of the first program. Without one, each commit runs different programs.
FIRST = chosen_seed(seeds_per_commit=1000)
# Minimum number of programs with gradients (132 of 500 have some). Maximum number of programs in which torch's own
# capture differs from eager code (15 of 500).
LEAST_GRADIENTS = 3
MOST_OF_TORCH = 10


def test_compiled_programs_equal_cpu(remote):
    gradients, torchs = 0, []
    for seed in range(FIRST, FIRST + PROGRAMS):
        result = check(seed)
        repeat = f"repeat: bazel run //tests/random_programs:compiled_programs -- --seed {seed}"
        assert result.what is None, f"seed {seed}: {result.what}\n{function_of(seed).source}\n{repeat}"
        gradients += result.gradients
        if result.torchs is not None:
            torchs.append(f"seed {seed}: {result.torchs}")
    assert gradients >= LEAST_GRADIENTS
    assert len(torchs) <= MOST_OF_TORCH, "\n".join(torchs)
