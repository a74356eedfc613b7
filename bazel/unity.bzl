"""Compiles several sources of a library at a time, because a file that includes torch takes most of its time for torch's headers."""

def unity_library(name, srcs, max_unit_size = 4, separate = [], **kwargs):
    """A cc_library that compiles up to `max_unit_size` of its sources as one. With --define=unity=off, it compiles each by itself.

    Names in anonymous namespaces must be unique among the sources.

    Args:
      name: of the library.
      srcs: sources, and headers that other components do not include.
      max_unit_size: sources that are compiled as one.
      separate: sources that are compiled by themselves. The compiler's choice of what to inline depends on the whole unit, and so does the speed of hot code.
      **kwargs: those of cc_library.
    """
    sources = [f for f in srcs if f.endswith(".cpp") and f not in separate]
    headers = [f for f in srcs if not f.endswith(".cpp")]
    units = list(separate)
    count = (len(sources) + max_unit_size - 1) // max_unit_size
    for i in range(count):
        # Units have about as many sources each, and neighbors are in different units. So a long file and its companions
        # are not all in one unit.
        part = sources[i::count]
        if len(part) == 1:
            units.append(part[0])
            continue
        unit = "%s_unit_%d.cpp" % (name, i)
        native.genrule(
            name = "%s_unit_%d" % (name, i),
            outs = [unit],
            cmd = "printf '#include \"%%s\"\\n' %s > $@" % " ".join(["%s/%s" % (native.package_name(), f) for f in part]),
        )
        units.append(unit)
    native.cc_library(
        name = name,
        srcs = headers + select({
            "//bazel:separate_units": sources + separate,
            "//conditions:default": units,
        }),
        textual_hdrs = [f for f in sources if f not in units],
        **kwargs
    )
