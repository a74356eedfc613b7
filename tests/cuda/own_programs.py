"""Random programs (`gpu_programs.py`, by seed) in which what CPU shows is CPU's own: no other device has to show it.

Each was looked at; one that shows the same nevertheless is told of, and goes from here.
"""

OWN_PROGRAMS = {
    seed: reason
    for reason, seeds in {
        # 0 or not, as many different ones, a base that is negative or not: of numbers that are rounded differently.
        "a jump where numbers are rounded": (2000350, 2004056, 2007086, 2007115, 2007874, 2008325, 9002757),
        # The variance of what is all the same, or of numbers much larger than they differ: here it is nearer to f64's.
        "a norm of numbers that hardly differ": (2002787, 2004398),
        # Sums of thirds, and a gradient of a call that raised, are taken for exact.
        "sums in another order": (2003810, 2007594, 9003350, 9003836),
        # 0 and inf among 16,900 factors; whoever multiplies them first gets nan.
        "a product in another order": (2006050, 9001364, 9002127),
        # A NaN's bits are looked at as integers; which NaN an op makes is each CPU's.
        "the bits of a NaN": (9100184,),
        # CPU's kernel takes one operand or the other, by how many elements there are.
        "signs of zeros that are compared": (2001906, 2009192, 9001972, 9003764),
        # Infinite weights times padding: nan where the padding is multiplied.
        "a convolution with weights that are not finite": (2000844, 2009086, 9100988),
        # Elements that share memory are written in place: what comes out depends on the order.
        "elements in place that share memory": (2007404, 2008513, 9004708),
        # exp(1e10 * angle i), whose angle is rounding alone, is infinite.
        "the angle of an infinite power": (2003613,),
        # CPU's kernels say that a number does not fit the dtype when they come to it.
        "a number that the dtype does not hold": (2007921,),
        # It would be NaN: torch for CUDA says that an integer is none.
        "a median of no integers": (
            2000128,
            2001597,
            2001613,
            2002216,
            2002340,
            2002615,
            2003169,
            2003744,
            2005580,
            2006574,
            2006947,
            2007125,
            2007128,
            2007659,
            2009244,
            2009376,
            9000982,
            9001065,
            9001261,
            9001423,
            9002659,
            9004635,
            9004972,
            9100243,
            9100292,
            9100447,
        ),
        # CPU's kernel refuses a complex number also where there is nothing to multiply.
        "an error about no elements": (2000672,),
    }.items()
    for seed in seeds
}
