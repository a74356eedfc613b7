"""Checks the components of the tree: docs/architecture.md lists them correctly, and there are no cycles.

A component is a folder with a BUILD file. A C++ file may include files of its own folder, and public headers (`hdrs`)
of targets that its target depends on. The targets' `deps` define which components use which. The table of
docs/architecture.md must state the same, and must list a component below all components that it uses. Units (a header
and its source, a Python module), components and Python packages form no cycles. Folders and classes stay small.
"""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = {
    "cc_library",
    "cc_binary",
    "py_library",
    "py_binary",
    "frontend_library",
    "flatbuffer_cc_library",
    "portable_binary",
    "torch_library",
    "unity_library",
    "vector_loops",
    "wheel",
}
FOLDERS = {"codegen", "frontend", "ir", "passes", "remote", "tools", "worker"}
# Not components: folders that only tests use, and folders of generated files.
APART = re.compile(r"(^|/)testing$|^tests|^examples|^bazel|^docs|^$")


@dataclass
class Target:
    package: str
    name: str
    srcs: list[str] = field(default_factory=list)
    hdrs: list[str] = field(default_factory=list)
    deps: list[str] = field(default_factory=list)
    test: bool = False
    library: bool = False


def tracked(*patterns: str) -> list[str]:
    listing = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listing.stdout.split("\n") if path and (ROOT / path).exists()]


def strings(node: ast.expr | None) -> list[str]:
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)] if node else []


def label(package: str, text: str) -> str:
    """Returns the full label, `//a/b:c`, of a label in a BUILD file of `package`."""
    if text.startswith(":"):
        return f"//{package}{text}"
    return text if ":" in text or not text.startswith("//") else f"{text}:{text.rsplit('/', 1)[-1]}"


def targets() -> dict[str, Target]:
    found = {}
    for path in tracked("*BUILD.bazel"):
        package = str(Path(path).parent).removeprefix(".")
        for call in ast.walk(ast.parse((ROOT / path).read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            of = {k.arg: k.value for k in call.keywords}
            if "name" not in of or not ("srcs" in of or "hdrs" in of or "deps" in of):
                continue
            name = "".join(strings(of["name"])) or f"line {call.lineno}"
            deps = [
                label(package, d) for key in ("deps", "torch_deps", "data", "package") for d in strings(of.get(key))
            ]
            test = call.func.id.endswith("_test") or "testonly" in of or call.func.id not in LIBRARIES
            library = call.func.id in ("cc_library", "torch_library", "unity_library")
            target = Target(package, name, strings(of.get("srcs")), strings(of.get("hdrs")), deps, test, library)
            found[f"//{package}:{name}"] = target
    return found


TARGETS = targets()


def component_of(package: str) -> str:
    """Maps a package to its component: `tools/viz` belongs to `tools`."""
    parts = package.split("/")
    if parts[:2] == ["worker", "targets"]:
        return "/".join(parts[:4])
    return "/".join(parts[:2]) if parts[0] in ("codegen", "frontend", "remote", "worker") else parts[0]


def arrows() -> dict[str, set[str]]:
    """Returns what each component uses, by BUILD files. Test targets count only in components without other targets."""
    found: dict[str, set[str]] = defaultdict(set)
    ships = {component_of(t.package) for t in TARGETS.values() if not t.test}
    for target in TARGETS.values():
        component = component_of(target.package)
        if APART.search(target.package) or (target.test and (component in ships or not target.library)):
            continue
        found[component] |= set()
        for dep in target.deps:
            package = dep.removeprefix("//").split(":")[0]
            if dep.startswith("//") and not APART.search(package) and component_of(package) != component:
                found[component].add(component_of(package))
    return found


def table() -> dict[str, set[str]]:
    """Returns the table of docs/architecture.md: for each component, what it uses."""
    rows = re.findall(r"^\| `([a-z/_]+)/` \|.*\| ([^|]*) \|$", (ROOT / "docs/architecture.md").read_text(), re.M)
    return {component: set(re.findall(r"`([a-z/_]+)`", uses)) for component, uses in rows}


def test_the_table_is_that_of_the_build_files():
    assert table() == dict(arrows())


def test_a_component_is_listed_above_those_that_use_it():
    order = list(table())
    for component, uses in table().items():
        for used in uses:
            assert order.index(used) < order.index(component), f"{component} uses {used}"


def includes(path: str) -> list[str]:
    return re.findall(r'^#include "([^"]+)"', (ROOT / path).read_text(), re.M)


def reachable(target: Target) -> set[str]:
    """Returns the labels of all transitive dependencies of the target."""
    seen: set[str] = set()
    stack = list(target.deps)
    while stack:
        dep = stack.pop()
        if dep in seen:
            continue
        seen.add(dep)
        if dep in TARGETS:
            stack += TARGETS[dep].deps
    return seen


def test_files_include_what_their_targets_name():
    checked, wrong = 0, []
    generated = re.compile(r"_generated\.h$")
    for target in TARGETS.values():
        public = {f"{TARGETS[d].package}/{h}" for d in reachable(target) if d in TARGETS for h in TARGETS[d].hdrs}
        for source in [s for s in target.srcs + target.hdrs if s.endswith((".cpp", ".h", ".cu"))]:
            path = f"{target.package}/{source}"
            if not (ROOT / path).exists():
                continue  # generated
            for header in includes(path):
                checked += 1
                if header.split("/")[0] not in FOLDERS:
                    continue  # a header of a library
                own = str(Path(header).parent) == target.package or header.startswith(f"{target.package}/")
                if not own and header not in public and not generated.search(header):
                    wrong.append(f"{path} includes {header}, which no target in its deps offers in hdrs")
    assert not wrong, "\n".join(wrong)
    assert checked > 600, checked


def test_sources_include_no_header_that_declares_all_of_torch():
    """Such a header takes a compiler many seconds (docs/build.md, "Traps")."""
    headers = re.compile(r"^#include <(ATen/ATen|ATen/Functions|torch/all|torch/torch|torch/types)\.h>", re.M)
    sources = tracked("*.cpp", "*.h")
    assert not [path for path in sources if headers.search((ROOT / path).read_text())]
    assert len(sources) > 500


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one node (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def test_cycles_are_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_units_of_cpp_form_no_cycles():
    edges: dict[str, set[str]] = defaultdict(set)
    for path in tracked("*.cpp", "*.h"):
        unit = path.rsplit(".", 1)[0]
        edges[unit] |= {header.rsplit(".", 1)[0] for header in includes(path)} - {unit}
    assert len(edges) > 200
    assert not cycles(edges), cycles(edges)


def imports_of_python() -> dict[str, set[str]]:
    """Returns each module's imports. Imports inside of functions count; a submodule's import of its package's __init__
    does not.
    """
    files = {p.removeprefix("python/").removesuffix(".py").removesuffix("/__init__"): p for p in tracked("python/*.py")}
    modules = {name.replace("/", "."): path for name, path in files.items()}
    edges: dict[str, set[str]] = {}
    for module, path in modules.items():
        edges[module] = set()
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                native = "torch_remote._C"
                names = [name if name in modules or name == native else node.module for name in inside]
            names = [name for name in names if name not in ("torch_remote", "torch_remote._C")]  # the native module
            edges[module] |= {name for name in names if name in modules and name != module}
    assert len(edges) > 30
    return edges


def test_modules_of_python_form_no_cycles():
    edges = imports_of_python()
    assert not cycles(edges), cycles(edges)


def test_packages_of_python_form_no_cycles():
    edges: dict[str, set[str]] = defaultdict(set)
    for module, used in imports_of_python().items():
        package = ".".join(module.split(".")[:2])
        edges[package] |= {".".join(name.split(".")[:2]) for name in used} - {package}
    assert not cycles(edges), cycles(edges)


MOST_FILES, MOST_FILES_OF_TESTS = 40, 45  # per folder, without corpora


def without_groups(pattern: str) -> list[str]:
    """Returns the regular expressions that a regular expression with groups of alternatives, `a(b|c)`, stands for."""
    group = re.search(r"\(([^()]*)\)", pattern)
    if group is None:
        return [pattern]
    before, after = pattern[: group.start()], pattern[group.end() :]
    return [each for choice in group[1].split("|") for each in without_groups(before + choice + after)]


def test_options_of_files_match_files():
    """Each `--per_file_copt` of .bazelrc must match a source: a renamed file silently loses its options otherwise."""
    sources = tracked("*.cpp")
    assert set(without_groups("a(b|c(d|e))")) == {"ab", "acd", "ace"}
    patterns = re.findall(r"--per_file_copt=(.*)@", (ROOT / ".bazelrc").read_text())
    assert len(patterns) > 2
    for pattern in patterns:
        for each in without_groups(pattern):
            assert any(re.search(each, source) for source in sources), f".bazelrc: no source matches {each}"


def test_folders_are_small():
    files: dict[str, int] = defaultdict(int)
    for path in tracked():
        if not path.startswith("tests/libfuzzer/corpus/"):
            files[str(Path(path).parent)] += 1
    for folder, count in files.items():
        assert count <= (MOST_FILES_OF_TESTS if folder.startswith("tests") else MOST_FILES), folder


MOST_METHODS = 25  # public, per class; overloads count once; constructors, destructors and operators do not count

TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*"  # comments, and lines of the preprocessor
    r'|R"([^(]*)\(.*?\)\1"|"(?:\\.|[^"\\])*"'
    r"|\d[\w'.]*|'(?:\\.|[^'\\])+'|\w+|::|->|\S",
    re.DOTALL | re.MULTILINE,
)
FUNCTION = re.compile(r"(~ )?\b(?!(?:alignas|decltype|explicit|noexcept|requires)\b)(\w+) +\((?!\*)")
CLASS = re.compile(r"(?<!enum )\b(class|struct|union)\b(?: +alignas \(| +\[)*((?: +(?:\w+|::))*) *(?: : .*)?$")


def tree_of(tokens: Iterator[str]) -> list:
    """Returns the tokens with brackets nested: those of `f(x) {}` become ["f", ["(", "x"], ["{"]]."""
    tree: list = []
    for token in tokens:
        if token in ")]}":
            break
        tree.append([token, *tree_of(tokens)] if token in "([{" else token)
    return tree


def flat(head: list) -> str:
    """Returns a declaration as text. Nothing is left of what is in brackets, except the `*` of `(*f)`."""
    text = " ".join(t if isinstance(t, str) else t[0] + "*" * (t[1:2] == ["*"]) for t in head)
    while text != (text := re.sub(r"<[^<>]*>", "", text)):
        pass
    return text


def public_methods(tree: list, scope: str = "", public: bool = True) -> Iterator[tuple[str, str]]:
    """Yields a class and a name for each public method in the body of `scope`, and of the classes in it."""
    head: list = []
    for token in tree:
        if token == ":" and head in (["public"], ["protected"], ["private"]):
            public, head = head == ["public"], []
            continue
        if token != ";" and token[0] != "{":
            head.append(token)
            continue
        text = flat(head)
        function = FUNCTION.search(text.split(" = ")[0])
        is_operator = re.search(r"\boperator\b", text) is not None
        if token != ";" and (opened := CLASS.search(text)):
            name = re.sub(" *:: *", "::", opened[2]).removesuffix(" final").split()
            yield from public_methods(token[1:], "::".join(filter(None, [scope, *name[-1:]])), opened[1] != "class")
        elif token != ";" and re.match(r'(inline )?namespace\b|extern "', text):
            yield from public_methods(token[1:])
        elif token != ";" and not is_operator and (not function or re.search(r"\(.* : .*\w *$", text)):
            head.append(token)  # an initializer, or the body of an enum
            continue
        elif scope and public and function and not is_operator and not text.endswith("= delete"):
            special = function[1] or function[2] == scope.rsplit("::", 1)[-1]
            if not special and not re.search(r"\b(friend|typedef)\b", text):
                yield scope, function[2]
        head = []


def count_public_methods(source: str) -> dict[str, int]:
    tokens = (m[0] for m in TOKEN.finditer(source) if not re.match(r"//|/\*|[ \t]*#|->", m[0]))
    names: dict[str, set[str]] = defaultdict(set)
    for scope, name in public_methods(tree_of(tokens)):
        names[scope].add(name)
    assert next(tokens, None) is None, "a bracket is closed that was not opened"
    return {scope: len(found) for scope, found in names.items()}


def test_public_methods_are_counted():
    source = """
        #define CLASS class A { public: void macro();
        namespace n { class Early; enum class E : int { a, b = f(1) }; struct Early f() { return {}; }
        template <typename T, bool = (1 < 2)> class [[nodiscard]] A final : public B<std::pair<int, T>>, C {
          void hidden();
         public:
          explicit A(int x = 1'000) : B<int>{x}, y_{f()}, z_(x) { if (x < 2) { g(); } }
          A(const A&) = delete;
          virtual ~A() = default;
          A& operator=(const A&) { return *this; }
          bool operator()(int) const;
          explicit operator bool() const { return true; }
          void deleted() = delete;
          friend void other(A) {}
          using F = std::function<void(int)>;
          std::function<void(int)> callback = [](int) { h(); };
          void (*pointer)(int) = nullptr;
          int field{f()}, bits : 3;  // void comment();
          static constexpr const char* kText = "; void text();";
          enum { kOne, kTwo };
          [[nodiscard]] virtual std::map<int, std::vector<T>> one(int a = f({1})) const noexcept = 0;
          template <typename U> requires(sizeof(U) < 4) auto two(U&& u) -> std::vector<U> { return {{u}}; }
          void two() &&; static int three() { struct Local { void local(); }; return 3; }
          struct Inner { Inner(); void in(); void in(int); int g() const { return 1; } private: void no(); };
         private:
          union { int a; float b; } u_;
          class Secret { public: void s(); };
         public: int four(char c = '"', const char* s = "\\"{"), y_;
        };
        struct A<int>::Inner { void in() {} };
        }"""
    assert count_public_methods(source) == {"A": 4, "A::Inner": 2, "A::Secret": 1}


def test_classes_are_small():
    checked, wrong = 0, []
    for path in tracked("*.h"):
        if path.startswith("tests/") or "/testing/" in path:
            continue
        for name, count in count_public_methods((ROOT / path).read_text()).items():
            checked += 1
            if count > MOST_METHODS:
                wrong.append(f"{path}: {name} has {count} public methods, more than {MOST_METHODS}")
    assert not wrong, "\n".join(wrong)
    assert checked > 200, checked
