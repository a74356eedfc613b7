// Reads the data that the page shows.
//
// The element "menu" has:
//   title     string
//   programs  number (0: a graph without a number), ops, groups, runs (null: unknown), us (p50 of one run, or null),
//             runner_counts: [name, number of kernels and library calls]; entry: index of the program's data in the element
//             "shared", or null, if the page does not have it: then `missing` says why
//   shown     index of the program that is shown first: the one that takes most time
//
// The element "shared" has the data of all programs; tools/viz/shared_json.h defines its form. A program's data are:
//   graph    the JSON of a graph, as docs/tools.md describes it
//   edges    [earlier node, later node]: the later one needs the earlier one
//   memory   sizes_known, height (bytes), peak (node), bars: [buffer, first node, last node, offset, bytes],
//            live: bytes at each node
//   values   the values of the symbols in one run, or empty
//   times    [p50, p99] in microseconds of each node, or null; empty if there are none
//   runners  what executed each node: a name, or "" if it is unknown; empty if there are no times
//   bytes    the bytes that each node reads and writes; empty if sizes are not known
const menu = JSON.parse(document.getElementById("menu").textContent);
const shared = JSON.parse(document.getElementById("shared").textContent);
const sharedValues = [];  // of the entries that were needed so far

function sharedValue(index) {
  if (index in sharedValues) return sharedValues[index];
  const entry = shared.entries[index];
  const children = typeof entry === "string" ? [] : entry.slice(1).map((child) => (Array.isArray(child) ? sharedValue(child[0]) : child));
  const value = typeof entry === "string" ? entry
    : entry[0] < 0 ? children
    : Object.fromEntries(shared.keys[entry[0]].map((key, i) => [key, children[i]]));
  return (sharedValues[index] = value);
}

// The program that is shown; readProgram sets them.
let data, nodes, symbolsByName, buffersByName;
let inputsOf, usersOf;  // nodes by node
let levelNames, tree;

function readProgram(program) {
  data = sharedValue(program.entry);
  nodes = data.graph.nodes;
  symbolsByName = new Map(data.graph.symbols.map((symbol) => [symbol.name, symbol]));
  buffersByName = new Map(data.graph.buffers.map((buffer) => [buffer.name, buffer]));
  inputsOf = nodes.map(() => []);
  usersOf = nodes.map(() => []);
  for (const [from, to] of data.edges) {
    inputsOf[to].push(from);
    usersOf[from].push(to);
  }
  levelNames = nodes.some((node) => node.source) ? ["functions", "lines", "ops"] : ["parts", "blocks", "ops"];
  tree = buildTree();
}

// -- text ---------------------------------------------------------------------------------------------------------------

const shortName = (op) => op.replace(/^aten::/, "");

function formatBytes(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    ++unit;
  }
  return `${unit === 0 ? bytes : bytes.toPrecision(3)} ${units[unit]}`;
}

const formatTime = (us) => (us >= 1000 ? `${(us / 1000).toPrecision(3)} ms` : `${us.toPrecision(3)} µs`);

// Returns a symbol as an expression over parameters if that is short.
function expression(value, depth = 0) {
  const symbol = symbolsByName.get(value);
  if (!symbol) return String(value);
  if (symbol.op === "const") return String(symbol.value);
  if (depth > 3) return value;
  const a = expression(symbol.a, depth + 1);
  const b = expression(symbol.b, depth + 1);
  const infix = { add: "+", sub: "-", mul: "*" }[symbol.op];
  const text = infix ? `${a}${infix}${b}` : `${symbol.op}(${a}, ${b})`;
  return text.length > 40 ? value : depth > 0 && infix ? `(${text})` : text;
}

// Returns the name of a symbol, and its value if a run is known.
function symbolText(value) {
  if (typeof value !== "string" || !/^s\d+$/.test(value)) return String(value);
  if (data.values.length === 0) return expression(value);
  return `${data.values[Number(value.slice(1))]}`;
}

function tensorText(tensor) {
  if (tensor.shape === null) return `size known only after the run, ${tensor.buffer}`;
  return `${tensor.dtype}[${tensor.shape.map(symbolText).join(", ")}]`;
}

function argumentText(arg) {
  switch (arg.kind) {
    case "none": return "none";
    case "tensor": return tensorText(arg);
    case "list": return `[${arg.items.map(argumentText).join(", ")}]`;
    case "philox": return `philox(${symbolText(arg.seed)}, ${symbolText(arg.offset)})`;
    case "complex": return `${symbolText(arg.value[0])} + ${symbolText(arg.value[1])}i`;
    case "number": case "scalar_tensor": return `${arg.dtype}(${[arg.value].flat().map(symbolText).join(", ")})`;
    case "string": return JSON.stringify(arg.value);
    case "alias": return `argument ${arg.arg}`;
    default: return symbolText(arg.value);
  }
}

function layoutText(tensor) {
  if (tensor.shape === null) return "";
  return `%${tensor.view} ${tensor.buffer}, strides (${tensor.strides.map(symbolText).join(", ")}), offset ${symbolText(tensor.offset)}`;
}

const tensorsIn = (arg) => (arg.kind === "tensor" ? [arg] : arg.kind === "list" ? arg.items.flatMap(tensorsIn) : []);
const firstResult = (node) => node.results.flatMap(tensorsIn)[0] || node.args.flatMap(tensorsIn).find((t) => t.writes);

// -- the tree: functions, lines, ops -------------------------------------------------------------------------------------

// A part of the program: the nodes first to last, in program order. The dependencies of such parts have no cycles.
function part(level, label, first, last, parent) {
  return { level, label, first, last, parent, open: false, children: [] };
}

function splitSource(source) {
  const match = /^(.*):(\d+) in (.*)$/.exec(source || "");
  if (!match) return { place: source || "", line: source || "", placeLabel: source || "", lineLabel: source || "" };
  const [, path, number, name] = match;
  const file = path.replace(/^.*\//, "");
  return { place: `${name} ${path}`, line: source, placeLabel: `${name}  ${file}`, lineLabel: `${file}:${number} in ${name}` };
}

// Groups consecutive nodes with the same key, or in blocks of `block` nodes if no key is known.
function runs(first, last, key, block) {
  const out = [];
  for (let n = first; n <= last; ++n) {
    const begins = n === first || (key ? key(n) !== key(n - 1) : (n - first) % block === 0);
    if (begins) out.push([n, n]);
    out[out.length - 1][1] = n;
  }
  return out;
}

function buildTree() {
  const known = nodes.some((node) => node.source);
  const place = nodes.map((node) => splitSource(node.source));
  const label = (level, first, last) => {
    if (!known) return `ops ${first} to ${last}`;
    return (level === 0 ? place[first].placeLabel : place[first].lineLabel) || "(no line known)";
  };
  const roots = [];
  for (const [first, last] of runs(0, nodes.length - 1, known && ((n) => place[n].place), 64)) {
    const outer = part(0, label(0, first, last), first, last, null);
    for (const [from, to] of runs(first, last, known && ((n) => place[n].line), 8)) {
      const inner = part(1, label(1, from, to), from, to, outer);
      for (let n = from; n <= to; ++n) inner.children.push(part(2, shortName(nodes[n].op), n, n, inner));
      outer.children.push(inner);
    }
    roots.push(outer);
  }
  return roots;
}

// Returns the parts that are drawn as boxes: the closed parts below open ones. A part with one child is never drawn itself.
function visibleParts() {
  const out = [];
  const visit = (p) => {
    if (p.children.length > 0 && (p.open || p.children.length === 1)) p.children.forEach(visit);
    else out.push(p);
  };
  tree.forEach(visit);
  return out;
}

function openTo(level) {
  const visit = (p) => {
    p.open = p.level < level;
    p.children.forEach(visit);
  };
  tree.forEach(visit);
}

function timeOf(first, last) {
  let sum = 0;
  for (let n = first; n <= last; ++n) sum += data.times[n] ? data.times[n][0] : 0;
  return sum;
}
