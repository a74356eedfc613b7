// The graph on a canvas. Only the part inside the window is drawn, with less detail at a smaller scale.
const graphSection = document.getElementById("graph");
const graphCanvas = graphSection.querySelector("canvas");
const view = { x: 0, y: 0, scale: 1, width: 0, height: 0 };  // x, y: the world's point in the middle of the window
let drawn = { boxes: [], rows: [], boxOf: new Int32Array(0) };
let hovered = null;   // a box
let selected = null;  // a node's number
let hits = new Set();  // nodes that the search found
let coloring = "family";

function relayout() {
  drawn = layout(visibleParts());
  recolor();
  hovered = null;
}

function recolor() {
  const amount = amounts[coloring];
  let largest = 0;
  for (const box of drawn.boxes) largest = Math.max(largest, amount ? amount(box.part) : 0);
  for (const box of drawn.boxes) {
    const { hue, plain } = colorings[coloring](box.part, largest);
    box.fill = fillOf(hue, plain);
    box.rim = rimOf(hue, plain);
  }
}

// Shows the legend of the colors: the families in the graph, or the range from zero to the maximum.
function showLegend() {
  const legend = document.getElementById("legend");
  legend.replaceChildren();
  const entry = (text, { hue, plain }) => {
    const line = element("div", undefined, undefined, legend);
    const swatch = element("i", undefined, undefined, line);
    swatch.style.background = fillOf(hue, plain);
    swatch.style.borderColor = rimOf(hue, plain);
    line.append(text);
  };
  if (coloring === "family") {
    const families = new Set(nodes.map((node) => node.family));
    for (const name of [...families].sort()) entry(name.replace("_", "-"), { hue: hues[name] ?? 0, plain: plainFamily(name) });
  } else if (coloring === "group") {
    entry("in no group", { hue: 0, plain: true });
    const kinds = new Set(data.graph.groups.map((group) => group.kind).filter(Boolean));
    for (const kind of [...kinds].sort()) entry(kind.replace("_", "-"), { hue: 137, plain: false });
  } else {
    entry("none", { hue: 230, plain: true });
    entry(`little ${coloring}`, { hue: 230, plain: false });
    entry("most", { hue: 0, plain: false });
  }
}

function resizeCanvas(canvas, target) {
  const ratio = window.devicePixelRatio || 1;
  target.width = canvas.parentElement.clientWidth;
  target.height = canvas.parentElement.clientHeight;
  canvas.width = Math.round(target.width * ratio);
  canvas.height = Math.round(target.height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

const toScreen = (x, y) => [(x - view.x) * view.scale + view.width / 2, (y - view.y) * view.scale + view.height / 2];
const toWorld = (x, y) => [(x - view.width / 2) / view.scale + view.x, (y - view.height / 2) / view.scale + view.y];

function fit() {
  let left = Infinity, right = -Infinity;
  for (const box of drawn.boxes) {
    left = Math.min(left, box.x);
    right = Math.max(right, box.x);
  }
  if (drawn.boxes.length === 0) return;
  const bottom = (drawn.rows.length - 1) * rowHeight;
  const wide = right - left + 2 * boxWidth, high = bottom + 2 * boxHeight + 30;
  const whole = Math.min(view.width / wide, view.height / high);
  // A tall graph begins at its top, at a readable size.
  view.scale = Math.min(1.1, Math.max(whole, Math.min(view.width / wide, 0.8)));
  view.x = (left + right) / 2;
  view.y = Math.min(bottom / 2, (view.height / view.scale - 2 * boxHeight) / 2);
}

function zoomAt(x, y, factor) {
  const [wx, wy] = toWorld(x, y);
  view.scale = Math.min(3, Math.max(0.004, view.scale * factor));
  view.x = wx - (x - view.width / 2) / view.scale;
  view.y = wy - (y - view.height / 2) / view.scale;
}

function boxAt(x, y) {
  const [wx, wy] = toWorld(x, y);
  const row = drawn.rows[Math.round(wy / rowHeight)];
  if (!row || Math.abs(wy - row[0].y) > boxHeight / 2) return null;
  return row.find((box) => Math.abs(wx - box.x) <= boxWidth / 2) || null;
}

function isHit(box) {
  if (hits.size === 0) return false;
  for (let n = box.part.first; n <= box.part.last; ++n) if (hits.has(n)) return true;
  return false;
}

// -- drawing --------------------------------------------------------------------------------------------------------------

function drawEdges(context, top, bottom) {
  const focus = hovered ?? (selected === null ? null : drawn.boxes[drawn.boxOf[selected]]);
  context.lineWidth = Math.max(0.6, 1.1 * view.scale);
  const passes = [{ strong: false }, { strong: true }];
  for (const { strong } of passes) {
    context.strokeStyle = strong ? theme.accent : theme.edge;
    for (const box of drawn.boxes) {
      for (const from of box.ins) {
        const other = drawn.boxes[from];
        if ((focus === box || focus === other) !== strong) continue;
        if (Math.max(box.y, other.y) < top || Math.min(box.y, other.y) > bottom) continue;
        const [x1, y1] = toScreen(other.x, other.y + boxHeight / 2);
        const [x2, y2] = toScreen(box.x, box.y - boxHeight / 2);
        const rows = Math.abs(box.y - other.y) / rowHeight;
        context.globalAlpha = strong ? 1 : rows > 6 ? 0.2 : focus ? 0.35 : 0.7;
        const bend = Math.min(Math.abs(y2 - y1) / 2, 60 * view.scale) + 4 * view.scale;
        // An edge that crosses other rows goes around their boxes.
        const side = box.x < other.x ? -1 : 1;
        const around = rows > 1.5 && Math.abs(x2 - x1) < boxWidth * view.scale;
        const aside = around ? side * boxWidth * view.scale * Math.min(1.6, 0.75 + 0.03 * rows) : 0;
        context.beginPath();
        context.moveTo(x1, y1);
        context.bezierCurveTo(x1 + aside, y1 + bend, x2 + aside, y2 - bend, x2, y2);
        context.stroke();
      }
    }
  }
  context.globalAlpha = 1;
}

function clipped(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const half = (low + high + 1) >> 1;
    if (context.measureText(text.slice(0, half) + "…").width <= width) low = half;
    else high = half - 1;
  }
  return text.slice(0, low) + "…";
}

// Returns the lines of a box: its name, its results, and at the right its time.
function boxLines(box) {
  const p = box.part;
  const time = data.times.length > 0 ? timeOf(p.first, p.last) : 0;
  const spent = time > 0 ? formatTime(time) : "";
  if (p.children.length > 0) return [p.label, `${p.last - p.first + 1} ops`, spent];
  const result = firstResult(nodes[p.first]);
  return [p.label, result ? tensorText(result) : "", spent];
}

function drawBox(context, box) {
  const [x, y] = toScreen(box.x - boxWidth / 2, box.y - boxHeight / 2);
  const width = boxWidth * view.scale, height = boxHeight * view.scale;
  const group = box.part.children.length > 0;
  const hit = isHit(box);
  context.fillStyle = box.fill;
  if (view.scale < 0.12) {
    context.fillStyle = hit ? theme.hit : box.rim;
    context.fillRect(x, y, Math.max(1, width), Math.max(1, height));
    return;
  }
  if (group) {  // a stack of sheets
    context.strokeStyle = box.rim;
    context.lineWidth = Math.max(0.5, view.scale);
    context.strokeRect(x + 4 * view.scale, y + 4 * view.scale, width, height);
  }
  context.beginPath();
  context.roundRect(x, y, width, height, (group ? 2 : 7) * view.scale);
  context.fill();
  const chosen = selected !== null && selected >= box.part.first && selected <= box.part.last;
  context.strokeStyle = hit ? theme.hit : chosen || box === hovered ? theme.accent : box.rim;
  context.lineWidth = (hit || chosen || box === hovered ? 2.6 : 1) * Math.max(0.5, view.scale);
  context.stroke();
  if (view.scale < 0.33) return;
  const [first, second, right] = boxLines(box);
  context.fillStyle = theme["box-ink"];
  context.font = `600 ${12 * view.scale}px system-ui, sans-serif`;
  context.fillText(clipped(context, first, width - 14 * view.scale), x + 7 * view.scale, y + 15 * view.scale);
  context.fillStyle = theme.quiet;
  context.font = `${10.5 * view.scale}px ui-monospace, "DejaVu Sans Mono", monospace`;
  const taken = right === "" ? 0 : context.measureText(right).width + 8 * view.scale;
  context.fillText(clipped(context, second, width - 14 * view.scale - taken), x + 7 * view.scale, y + 30 * view.scale);
  context.fillText(right, x + width - 7 * view.scale - taken + 8 * view.scale, y + 30 * view.scale);
}

function drawGraph() {
  const context = resizeCanvas(graphCanvas, view);
  context.fillStyle = theme.back;
  context.fillRect(0, 0, view.width, view.height);
  const [left, top] = toWorld(0, 0);
  const [right, bottom] = toWorld(view.width, view.height);
  drawEdges(context, top - boxHeight, bottom + boxHeight);
  const from = Math.max(0, Math.floor(top / rowHeight));
  const to = Math.min(drawn.rows.length - 1, Math.ceil(bottom / rowHeight));
  for (let r = from; r <= to; ++r) {
    for (const box of drawn.rows[r]) {
      if (box.x + boxWidth > left && box.x - boxWidth < right) drawBox(context, box);
    }
  }
}

// -- going somewhere --------------------------------------------------------------------------------------------------------

function partsAround(node) {
  const around = [];
  const visit = (p) => {
    if (node < p.first || node > p.last) return;
    around.push(p);
    p.children.forEach(visit);
  };
  tree.forEach(visit);
  return around;  // outermost part first
}

// Opens the parts that hide the node, and scrolls it into the middle.
function goTo(node) {
  const hidden = partsAround(node).filter((p) => p.children.length > 0 && !p.open);
  if (hidden.length > 0) {
    for (const p of hidden) p.open = true;
    relayout();
    showLevel();
  }
  selected = node;
  const box = drawn.boxes[drawn.boxOf[node]];
  view.x = box.x;
  view.y = box.y;
  view.scale = Math.max(view.scale, 0.7);
  showDetails();
  drawAll();
}

// Opens or closes a part, and keeps the position of `node` on the screen.
function setOpen(p, open, node) {
  const before = drawn.boxes[drawn.boxOf[node]];
  p.open = open;
  relayout();
  const after = drawn.boxes[drawn.boxOf[node]];
  view.x += after.x - before.x;
  view.y += after.y - before.y;
  showLevel();
  showDetails();
  drawAll();
}
